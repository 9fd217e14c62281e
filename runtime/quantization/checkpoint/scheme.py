"""Schemes of quantized checkpoints, and which one a config.json names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch

from runtime.errors import ConfigError
from runtime.kernels.quantized_tensor import QuantizedTensor
from runtime.plugins import Registry

FIELD = "quantization_config"
WEIGHT = ".weight"


Read = Callable[[str], torch.Tensor]  # reads one of a weight's tensors by its suffix


class QuantScheme(ABC):
    """How a checkpoint stores a quantized weight: as several tensors with suffixes instead of NAME.weight."""

    label: str  # name in messages
    format: str  # format of the weights (``quantization/base.py``)
    flag: str  # equivalent value of --quantization
    suffixes: tuple[str, ...]  # all tensors of a quantized weight
    ignored_suffixes: tuple[str, ...] = ()  # further tensors, which are ignored

    def shape(self, shape_of: Callable[[str], list[int]], read: Read) -> list[int]:
        """Returns the shape of the weight."""
        return shape_of(WEIGHT)

    @abstractmethod
    def read_quantized(self, read: Read, device: torch.device) -> QuantizedTensor:
        """Returns the weight in its format on `device`.

        Raises:
            ConfigError: inconsistent tensors; the message continues a sentence that names the weight.
        """


MakeScheme = Callable[[Mapping[str, Any]], QuantScheme]
_METHODS: Registry[MakeScheme] = Registry("quantization method")


def register_method(name: str, make: MakeScheme) -> None:
    """Registers a method; `make` maps its config to the scheme and raises ConfigError for unsupported values."""
    _METHODS.add(name, make)


def get_scheme(config: Mapping[str, Any]) -> QuantScheme | None:
    """Returns the scheme of a checkpoint's config.json; None if its weights are not quantized.

    Raises:
        ConfigError: the method is not supported.
    """
    field = config.get(FIELD)
    if field is None:
        return None
    method: Any = field.get("quant_method") if isinstance(field, Mapping) else None
    if not isinstance(method, str) or method not in _METHODS:
        raise ConfigError(
            f"config.json: {FIELD}'s quant_method is {method!r}, which is not supported; supported: "
            f"{', '.join(sorted(_METHODS))}; use an unquantized checkpoint, optionally with --quantization"
        )
    return _METHODS[method](field)


def quantization_of(config: Mapping[str, Any], requested: str | None) -> str | None:
    """Returns the format of a model's weights.

    Args:
        requested: value of --quantization.

    Raises:
        ConfigError: it contradicts the checkpoint.
    """
    scheme = get_scheme(config)
    if scheme is None or requested == scheme.flag:
        return requested if scheme is None else scheme.format
    if requested is not None:
        raise ConfigError(
            f"--quantization {requested}: the checkpoint is already quantized as {scheme.label}; leave it out"
        )
    return scheme.format


def refuse(field: str, value: object, supported: str) -> ConfigError:
    return ConfigError(f"config.json: {FIELD}'s {field} is {value!r}, which is not supported; supported: {supported}")
