"""Tests of the messages that name why no GPU is usable, and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from runtime import LLM
from runtime.distributed import gpu
from runtime.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(gpu, "_DEVICE", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_build_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert gpu.missing_gpu_reason() == f"torch {torch.__version__} is built without CUDA; install a build with CUDA"


@pytest.mark.parametrize("value", ["", "-1"])
def test_a_variable_that_hides_gpus(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert gpu.missing_gpu_reason() == f"CUDA_VISIBLE_DEVICES={value} hides all GPUs; unset it"


def test_no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu, "_DEVICE", tmp_path / "nvidiactl")
    assert "no NVIDIA driver is loaded; install it, or pass GPUs to the container" in gpu.missing_gpu_reason()


def test_a_driver_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(*_: object, **__: object) -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11000). Please update it.")

    monkeypatch.setattr(torch, "empty", empty)
    reason = gpu.missing_gpu_reason()
    assert "CUDA cannot be initialized (The NVIDIA driver on your system is too old (found version 11000));" in reason


def test_flags_that_require_a_gpu_name_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu, "_DEVICE", tmp_path / "nvidiactl")
    with pytest.raises(ConfigError, match=r"^--device cuda: no GPU is usable: no NVIDIA driver is loaded"):
        LLM(device="cuda")


def test_a_backend_names_the_reason_and_not_the_number_of_devices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "_DEVICE", tmp_path / "nvidiactl")
    with pytest.raises(ConfigError, match=r"^--device cuda: no GPU is usable: no NVIDIA driver is loaded"):
        gpu.check_devices((0,), "--device-ids")
