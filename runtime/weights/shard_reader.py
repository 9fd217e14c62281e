"""Lazily read tensors of a checkpoint. A quantized tensor consists of several stored tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from runtime.errors import ConfigError
from runtime.kernels.quantized_tensor import QuantizedTensor
from runtime.parameters.sharding import Index
from runtime.quantization.checkpoint.scheme import WEIGHT, CheckpointQuantization, QuantScheme
from runtime.weights.checkpoint import TensorFile, summary


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a checkpoint.

    Attributes:
        name: Name in messages.
        parts: Ending -> file and name of each stored tensor; an unquantized tensor has only the ending "".
        scheme: How it is quantized; None if it is not.
        file: File of its main part, the stored tensor with most of the values.
        data: The main part, if it was read already.
    """

    name: str
    parts: Mapping[str, tuple[TensorFile, str]]
    scheme: QuantScheme | None
    file: str
    data: torch.Tensor | None = None

    @property
    def shape(self) -> list[int]:
        """Shape; data of unquantized tensors is not read. The text of a ConfigError follows the tensor's name."""
        if self.scheme is None:
            return self._shape_of("")
        return self.scheme.shape(self._shape_of, self._read)

    @property
    def main_ending(self) -> str:
        return "" if self.scheme is None else self.scheme.suffixes[0]

    @property
    def main_name(self) -> str:
        return self.parts[self.main_ending][1]

    @property
    def sort_key(self) -> tuple[str, str]:
        """Key that sorts tensors by file."""
        return self.file, self.main_name

    def read(self, box: Index = ()) -> torch.Tensor:
        """Reads a slice of an unquantized tensor, and no more of the file; all of it for ()."""
        if not box or self.data is not None:
            return self._read("")[box]
        handle, name = self.parts[""]
        return handle.get_slice(name)[box]

    def read_quantized(self, device: torch.device) -> QuantizedTensor:
        assert self.scheme is not None
        return self.scheme.read_quantized(self._read, device)

    def equals(self, other: StoredTensor) -> bool:
        """Returns whether all stored tensors are equal."""
        return self.parts.keys() == other.parts.keys() and all(
            a.dtype == b.dtype and torch.equal(a, b)
            for a, b in ((self._read(ending), other._read(ending)) for ending in self.parts)
        )

    def _shape_of(self, ending: str) -> list[int]:
        handle, name = self.parts[ending]
        return list(handle.get_slice(name).get_shape())

    def _read(self, ending: str) -> torch.Tensor:
        if self.data is not None and ending == self.main_ending:
            return self.data
        handle, name = self.parts[ending]
        return handle.get_tensor(name)


# Endings of scales of the keys and values of a quantized KV cache
CACHE_SCALES = (".k_scale", ".v_scale", ".k_proj.output_scale", ".v_proj.output_scale")


class StoredParts(NamedTuple):
    """The stored tensors of one tensor of the unquantized checkpoint.

    Attributes:
        scheme: how it is quantized; None if it is not.
        names: ending -> stored name, see ``StoredTensor.parts``.
    """

    scheme: QuantScheme | None
    names: dict[str, str]


def group_tensors(names: Collection[str], quantization: CheckpointQuantization | None) -> dict[str, StoredParts]:
    """Groups stored tensors into the tensors of the unquantized checkpoint, by the names of the latter.

    Of a quantized checkpoint, scales of activations and of the KV cache are left out.

    Raises:
        ConfigError: A part of a quantized weight is missing. The message continues a sentence that names the
            checkpoint.
    """
    if quantization is None:
        return {name: StoredParts(None, {"": name}) for name in names}
    endings = {ending for scheme in quantization.schemes for ending in scheme.suffixes} - {WEIGHT}
    by_module: dict[str, dict[str, str]] = {}
    for name in names:
        for ending in endings:
            if name.endswith(ending):
                by_module.setdefault(name.removesuffix(ending), {})[ending] = name
    if not by_module:
        raise ConfigError(
            f"holds no weight that is quantized, though config.json says that they are {quantization.label}"
        )
    quantized: dict[str, StoredParts] = {}
    taken: set[str] = set()
    lost: list[str] = []
    schemes = quantization.schemes_of(by_module)
    for module, found in by_module.items():
        scheme = schemes[module]
        if module + WEIGHT in names:
            found[WEIGHT] = module + WEIGHT
        optional = {ending: module + ending for ending in scheme.optional_suffixes if module + ending in names}
        own = {ending: found[ending] for ending in scheme.suffixes if ending in found} | optional
        lost += [module + ending for ending in scheme.suffixes if ending not in own]
        taken |= {*own.values(), *(module + ending for ending in scheme.ignored_suffixes)}
        quantized[module + WEIGHT] = StoredParts(scheme, own)
    if lost:
        raise ConfigError(f"lacks {summary(sorted(lost))}, parts of weights that are quantized as {quantization.label}")
    unquantized = {
        name: StoredParts(None, {"": name}) for name in names if name not in taken and not name.endswith(CACHE_SCALES)
    }
    twice = sorted(unquantized.keys() & quantized.keys())
    if twice:
        raise ConfigError(f"holds {summary(twice)} both quantized and unquantized")
    return unquantized | quantized
