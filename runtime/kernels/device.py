"""Device properties that kernels select tile sizes by."""

from __future__ import annotations

import functools

import torch


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Returns the number of SMs of a GPU; 2 without one, so that persistent kernels process several tiles in the
    interpreter.
    """
    if device.type != "cuda":
        return 2
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
