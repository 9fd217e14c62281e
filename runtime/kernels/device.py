"""What kernels' sizes are chosen by of a device."""

from __future__ import annotations

import functools

import torch


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Of a GPU; in the interpreter few, so that programs that stay have several tiles each."""
    if device.type != "cuda":
        return 2
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
