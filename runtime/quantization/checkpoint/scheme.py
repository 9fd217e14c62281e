"""Schemes of quantized checkpoints, and which one a config.json names for each weight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from runtime.errors import ConfigError
from runtime.kernels.quantized_tensor import QuantizedTensor
from runtime.plugins import Registry

FIELD = "quantization_config"
WEIGHT = ".weight"
SHOWN = 200  # characters


Read = Callable[[str], torch.Tensor]  # reads one of a weight's tensors by its suffix


class QuantScheme(ABC):
    """How a checkpoint stores a quantized weight: as several tensors with suffixes instead of NAME.weight."""

    label: str  # name in messages
    format: str  # format of the weights (``quantization/base.py``)
    flag: str  # equivalent value of --quantization
    suffixes: tuple[str, ...]  # all tensors of a quantized weight
    optional_suffixes: tuple[str, ...] = ()  # those that a checkpoint may lack; then `Read` raises KeyError
    ignored_suffixes: tuple[str, ...] = ()  # further tensors, which are ignored
    needs_one_rank: str = ""  # why config.json rules out tensor parallelism, as text; "" if it does not

    def shape(self, shape_of: Callable[[str], list[int]], read: Read) -> list[int]:
        """Returns the shape of the weight."""
        return shape_of(WEIGHT)

    @abstractmethod
    def read_quantized(self, read: Read, device: torch.device) -> QuantizedTensor:
        """Returns the weight in its format on `device`.

        Raises:
            ConfigError: inconsistent tensors; the message continues a sentence that names the weight.
        """


@dataclass(frozen=True)
class CheckpointQuantization:
    """How config.json says that the weights of a checkpoint are quantized.

    The files decide which weights are quantized, because config.json may name classes of modules. It decides how.

    Attributes:
        schemes: those of all weights.
        stated: names of modules -> the scheme of each; None if config.json says that it is not quantized.
    """

    schemes: tuple[QuantScheme, ...]
    stated: Callable[[Collection[str]], dict[str, QuantScheme | None]]

    @classmethod
    def uniform(
        cls, scheme: QuantScheme, is_excluded: Callable[[str], bool] = lambda module: False
    ) -> CheckpointQuantization:
        """Returns a quantization with one scheme; `is_excluded` tells which modules are not quantized."""
        return cls((scheme,), lambda modules: {name: None if is_excluded(name) else scheme for name in modules})

    @property
    def label(self) -> str:
        """Name in messages."""
        return " and ".join(dict.fromkeys(scheme.label for scheme in self.schemes))

    @property
    def format(self) -> str:
        """Formats of the weights, joined with +."""
        return "+".join(dict.fromkeys(scheme.format for scheme in self.schemes))

    def schemes_of(self, modules: Collection[str]) -> dict[str, QuantScheme]:
        """Returns the scheme of each module whose weight is quantized in the files.

        Raises:
            ConfigError: config.json states none for one, and has several for others; or as `stated`.
        """
        if len(self.schemes) == 1:
            return dict.fromkeys(modules, self.schemes[0])
        found: dict[str, QuantScheme] = {}
        for module, scheme in self.stated(modules).items():
            if scheme is None:
                raise ConfigError(
                    f"quantizes the weight of {module!r}, to which config.json assigns none of its formats, "
                    f"{self.label}"
                )
            found[module] = scheme
        return found


MakeQuantization = Callable[[Mapping[str, Any]], CheckpointQuantization]
_METHODS: Registry[MakeQuantization] = Registry("quantization method")


def register_method(name: str, make: MakeQuantization) -> None:
    """Registers a method; `make` reads its config and raises ConfigError for unsupported values."""
    _METHODS.add(name, make)


def get_quantization(config: Mapping[str, Any]) -> CheckpointQuantization | None:
    """Returns the quantization of a checkpoint's config.json; None if its weights are not quantized.

    Raises:
        ConfigError: the method is not supported.
    """
    field = config.get(FIELD)
    if field is None:
        return None
    method: Any = field.get("quant_method") if isinstance(field, Mapping) else None
    if not isinstance(method, str) or method not in _METHODS:
        raise ConfigError(
            f"config.json: {FIELD}'s quant_method is {shown(method)}, which is not supported; supported: "
            f"{', '.join(sorted(_METHODS))}; use an unquantized checkpoint, optionally with --quantization"
        )
    return _METHODS[method](field)


def quantization_of(config: Mapping[str, Any], requested: str | None) -> str | None:
    """Returns the format of a model's weights. Several formats are joined with +.

    Args:
        requested: value of --quantization.

    Raises:
        ConfigError: it contradicts the checkpoint.
    """
    quantization = get_quantization(config)
    if quantization is None:
        return requested
    if requested is not None and all(requested != scheme.flag for scheme in quantization.schemes):
        raise ConfigError(
            f"--quantization {requested}: the checkpoint is already quantized as {quantization.label}; leave it out"
        )
    return quantization.format


def one_rank_reason(config: Mapping[str, Any]) -> str:
    """Returns why the weights of a checkpoint cannot be sharded over several ranks, as text; "" if they can.

    Args:
        config: content of config.json.
    """
    quantization = get_quantization(config)
    reasons = [] if quantization is None else [scheme.needs_one_rank for scheme in quantization.schemes]
    return next(filter(None, reasons), "")


def refuse(field: str, value: object, supported: str) -> ConfigError:
    return ConfigError(
        f"config.json: {FIELD}'s {field} is {shown(value)}, which is not supported; supported: {supported}"
    )


def shown(value: object) -> str:
    """Returns a value of a checkpoint as an error shows it, at most `SHOWN` characters."""
    try:
        text = repr(value)
    except RecursionError:
        return "nested too deeply"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def plain(value: object) -> str:
    """Returns a text of a checkpoint without quotes, or another value as `shown`; at most `SHOWN` characters."""
    return value[:SHOWN] if isinstance(value, str) else shown(value)


def name_list(config: Mapping[str, Any], field: str, default: list[str]) -> list[str]:
    """Returns a list of names. Raises ConfigError for anything else."""
    names = config.get(field)
    if names is None:
        return default
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise refuse(field, names, "a list of names of modules")
    return names


def flag_of(config: Mapping[str, Any], field: str, *, default: bool) -> bool:
    """Returns a boolean of a config. Raises ConfigError for another value."""
    value = config.get(field, default)
    if type(value) is not bool:
        raise refuse(field, value, "true and false")
    return value


def read_matrix(read: Read, dtype: torch.dtype, beside: str = "a scale") -> torch.Tensor:
    """Reads `WEIGHT`, a matrix of this dtype. Raises ConfigError for anything else; it names what is `beside` it."""
    values = read(WEIGHT)
    if values.dtype != dtype or values.dim() != 2:
        raise ConfigError(f"is {values.dtype} {list(values.shape)} with {beside}, not a matrix of {dtype}")
    return values


def checked(tensor: torch.Tensor, ending: str, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor of this shape and dtype. float32 stands for every floating point type, which it converts.

    Raises:
        ConfigError: another shape or type; the message continues a sentence that names the weight.
    """
    if list(tensor.shape) != shape:
        raise ConfigError(f"has {ending} {list(tensor.shape)}, not {shape}")
    if dtype != torch.float32:
        if tensor.dtype != dtype:
            raise ConfigError(f"has {ending} of {tensor.dtype}, not {dtype}")
    elif not tensor.is_floating_point() or tensor.element_size() < 2:
        raise ConfigError(f"has {ending} of {tensor.dtype}, not torch.float16, torch.bfloat16 or torch.float32")
    return tensor.to(dtype)
