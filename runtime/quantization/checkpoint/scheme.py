"""What a method of quantising checkpoints says of itself, and which one a config.json names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch

from runtime.errors import ConfigError
from runtime.kernels.quant_reference import QuantizedTensor

FIELD = "quantization_config"
MAIN = ".weight"


Read = Callable[[str], torch.Tensor]  # one of a weight's tensors by its ending


class Scheme(ABC):
    """How a checkpoint keeps its quantised weights: instead of NAME.weight, or beside it, under several endings."""

    label: str  # how messages call it
    format: str  # the weights' format here (``quantization/registry.py``)
    flag: str  # the value of --quantization that asks for the same
    endings: tuple[str, ...]  # the tensors of a quantised weight, all of them there
    spare: tuple[str, ...] = ()  # tensors beside them that change nothing here

    @abstractmethod
    def shape(self, shape_of: Callable[[str], list[int]], read: Read) -> list[int]:
        """Of the weight that the tensors of these endings are."""

    @abstractmethod
    def packed(self, read: Read, device: torch.device) -> QuantizedTensor:
        """The weight as its format keeps it, on `device`. ConfigError, worded to follow its name, for tensors that do
        not go together."""


Make = Callable[[Mapping[str, Any]], Scheme]
_METHODS: dict[str, Make] = {}


def register_method(name: str, make: Make) -> None:
    """`make`: from what config.json says to the scheme; ConfigError for what is not built."""
    if name in _METHODS:
        raise ValueError(f"quantisation method {name!r} is registered twice")
    _METHODS[name] = make


def scheme_of(config: Mapping[str, Any]) -> Scheme | None:
    """That of the checkpoint whose config.json this is; None: its weights are plain. ConfigError for what is not
    read."""
    stated = config.get(FIELD)
    if stated is None:
        return None
    method = stated.get("quant_method") if isinstance(stated, Mapping) else None
    if not isinstance(stated, Mapping) or method not in _METHODS:
        raise ConfigError(
            f"config.json: {FIELD} names the method {method!r}, but {' and '.join(sorted(_METHODS))} alone are read; "
            "take the plain checkpoint, and --quantization if it is to be small"
        )
    return _METHODS[method](stated)


def quantization_of(config: Mapping[str, Any], asked: str | None) -> str | None:
    """The format that a model is kept in, of its config.json and --quantization; ConfigError if these disagree."""
    scheme = scheme_of(config)
    if scheme is None or asked == scheme.flag:
        return asked if scheme is None else scheme.format
    if asked is not None:
        raise ConfigError(
            f"--quantization {asked}: this checkpoint's weights are quantised already, as {scheme.label}, and to round "
            "them again would only lose more; leave it out"
        )
    return scheme.format


def refuse(field: str, value: object, fits: str) -> ConfigError:
    return ConfigError(f"config.json: {FIELD}'s {field} is {value!r}, which is not read; what is: {fits}")
