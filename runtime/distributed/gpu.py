"""Checks that GPUs exist, names their models, and returns the reason if torch cannot use them."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from runtime.errors import ConfigError

_DEVICE = Path("/dev/nvidiactl")  # exists if the driver is loaded and, in a container, mounted


def missing_gpu_reason() -> str:
    """Returns why torch cannot use a GPU, and the fix; "" if it can use one."""
    if torch.cuda.is_available() and torch.cuda.device_count():
        return ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built without CUDA; install a build with CUDA"
    if visible is not None and visible.strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES={visible} hides all GPUs; unset it"
    if not _DEVICE.exists():
        return (
            "no NVIDIA driver is loaded; install it, or pass GPUs to the container (docker run --gpus all, spec.gpu "
            "of a DiffusionLMService)"
        )
    try:
        torch.empty(1, device="cuda")
    except RuntimeError as error:
        cause = str(error).strip().split(". ")[0]
        return f"CUDA cannot be initialized ({cause}); compare with the output of nvidia-smi"
    return f"CUDA_VISIBLE_DEVICES={visible} names no GPU of this host; name GPUs that nvidia-smi lists"


def require_gpu(name: str) -> None:
    """Raises ConfigError with the reason and the fix if torch cannot use a GPU.

    Args:
        name: the flag or command that requires one.
    """
    if reason := missing_gpu_reason():
        raise ConfigError(f"{name}: no GPU is usable: {reason}")


def device_name(device: torch.device) -> str:
    """Returns the model of a GPU, or the architecture of the CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()


def check_devices(devices: tuple[int, ...], flag: str) -> None:
    """Raises ConfigError unless all devices exist."""
    require_gpu("--device cuda")
    there = torch.cuda.device_count()
    absent = [device for device in devices if device >= there]
    if absent:
        raise ConfigError(
            f"{flag}: GPU {absent[0]} is required, but only {there} are visible; lower --tensor-parallel-size, or "
            "--data-parallel-size, or give --device-ids that exist"
        )
