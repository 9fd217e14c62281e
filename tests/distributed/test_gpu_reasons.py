"""Tests of the messages that name why no GPU is usable, and the fix."""

from __future__ import annotations

from collections.abc import Callable
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


def fail(*_: object, **__: object) -> None:
    raise RuntimeError("The NVIDIA driver on your system is too old (found version 11000). Please update it.")


DRIVER = "no NVIDIA driver is loaded; install it, or pass GPUs to the container"
REASONS = [
    (lambda patch: patch.setattr(torch.version, "cuda", None), "is built without CUDA; install a build with CUDA"),
    (lambda patch: patch.setenv("CUDA_VISIBLE_DEVICES", ""), "CUDA_VISIBLE_DEVICES= hides all GPUs; unset it"),
    (lambda patch: patch.setenv("CUDA_VISIBLE_DEVICES", "-1"), "CUDA_VISIBLE_DEVICES=-1 hides all GPUs; unset it"),
    (lambda patch: patch.setattr(gpu, "_DEVICE", Path("/nowhere")), DRIVER),
    (lambda patch: patch.setattr(torch, "empty", fail), "too old (found version 11000));"),
]


@pytest.mark.parametrize(("change", "reason"), REASONS)
def test_the_reason_why_no_gpu_is_usable(
    change: Callable[[pytest.MonkeyPatch], None], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch)
    assert reason in gpu.missing_gpu_reason()


@pytest.mark.parametrize("check", [lambda: LLM(device="cuda"), lambda: gpu.check_devices((0,), "--device-ids")])
def test_flags_that_require_a_gpu_name_the_reason(check: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_DEVICE", Path("/nowhere"))
    with pytest.raises(ConfigError, match=r"^--device cuda: no GPU is usable: no NVIDIA driver is loaded"):
        check()
