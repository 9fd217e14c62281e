"""Registry of the formats of linear layers and experts, by name. Each file of the package registers its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from runtime.errors import RegisteredTwiceError
from runtime.kernels.ops import KernelSet
from runtime.quantization.base import QuantizedWeight

MakeWeight = Callable[[tuple[int, ...], torch.dtype, torch.device, KernelSet, bool], QuantizedWeight]


@dataclass(frozen=True)
class WeightFormat:
    """A format of quantized weights.

    Attributes:
        key: its name.
        make: (shape, dtype, device, kernels, interleaved) -> an uninitialized weight.
        check: (device, dtype); raises ConfigError if the format does not support them.
    """

    key: str
    make: MakeWeight
    check: Callable[[torch.device, torch.dtype], None]


_FORMATS: dict[str, WeightFormat] = {}


def register_format(format: WeightFormat) -> None:
    if format.key in _FORMATS:
        raise RegisteredTwiceError(f"weight format {format.key!r} is registered twice")
    _FORMATS[format.key] = format


def get_format(key: str) -> WeightFormat:
    return _FORMATS[key]
