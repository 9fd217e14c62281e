"""The formats that linear layers and experts may be kept in, by name: one file each, which registers itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from runtime.kernels.ops import KernelSet
from runtime.quantization.base import PackedWeight

Make = Callable[[tuple[int, ...], torch.dtype, torch.device, KernelSet, bool], PackedWeight]


@dataclass(frozen=True)
class Format:
    """`make(shape, dtype, device, kernels, turns)`: an unfilled weight. `check(device, dtype)` raises ConfigError for
    what the format does not go with."""

    key: str
    make: Make
    check: Callable[[torch.device, torch.dtype], None]


_FORMATS: dict[str, Format] = {}


def register_format(format: Format) -> None:
    if format.key in _FORMATS:
        raise ValueError(f"weight format {format.key!r} is registered twice")
    _FORMATS[format.key] = format


def format_of(key: str) -> Format:
    return _FORMATS[key]
