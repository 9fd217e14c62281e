"""A checkpoint's tensors as they stand in open files: a plain one is one of them, a quantised one several."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from runtime.errors import ConfigError
from runtime.kernels.quant_reference import QuantizedTensor
from runtime.layers.sharding import Index
from runtime.quantization.checkpoint import QuantScheme
from runtime.quantization.checkpoint.scheme import WEIGHT
from runtime.weights.checkpoint import TensorFile, summary


@dataclass(frozen=True)
class Stored:
    """`name`: as messages call it. `parts`: the stored name of each of its tensors by its ending; of a plain one, just
    its own by ""."""

    name: str
    parts: Mapping[str, tuple[TensorFile, str]]
    scheme: QuantScheme | None

    @property
    def shape(self) -> list[int]:
        """Nothing of a plain one is read for it. ConfigError, worded to follow its name."""
        if self.scheme is None:
            return self._shape_of("")
        return self.scheme.shape(self._shape_of, self._read)

    @property
    def place(self) -> tuple[int, str]:
        """By which they are read in the order of their files."""
        handle, name = next(iter(self.parts.values()))
        return id(handle), name

    def plain(self, box: Index = ()) -> torch.Tensor:
        """Of a plain one a box, and no more of the file; all of it for ()."""
        if not box:
            return self._read("")
        handle, name = self.parts[""]
        return handle.get_slice(name)[box]

    def read_quantized(self, device: torch.device) -> QuantizedTensor:
        assert self.scheme is not None
        return self.scheme.read_quantized(self._read, device)

    def equals(self, other: Stored) -> bool:
        """Tensor by tensor."""
        return self.parts.keys() == other.parts.keys() and all(
            a.dtype == b.dtype and torch.equal(a, b)
            for a, b in ((self._read(ending), other._read(ending)) for ending in self.parts)
        )

    def _shape_of(self, ending: str) -> list[int]:
        handle, name = self.parts[ending]
        return list(handle.get_slice(name).get_shape())

    def _read(self, ending: str) -> torch.Tensor:
        handle, name = self.parts[ending]
        return handle.get_tensor(name)


def gather(names: Collection[str], scheme: QuantScheme | None) -> dict[str, dict[str, str]]:
    """The stored names of each tensor's parts by their endings, by the name that it would have were it plain.

    ConfigError for a quantised weight of which a part is missing.
    """
    if scheme is None:
        return {name: {"": name} for name in names}
    own = [ending for ending in scheme.suffixes if ending != WEIGHT]
    quantised: dict[str, dict[str, str]] = {}
    for name in names:
        for ending in own:
            if name.endswith(ending):
                quantised.setdefault(name.removesuffix(ending) + WEIGHT, {})[ending] = name
    if not quantised:
        raise ConfigError(f"holds no weight that is quantised, though config.json says that they are {scheme.label}")
    taken = {name for parts in quantised.values() for name in parts.values()}
    if WEIGHT in scheme.suffixes:
        for main, parts in quantised.items():
            if main in names:
                parts[WEIGHT] = main
                taken.add(main)
    lost = [
        main.removesuffix(WEIGHT) + ending
        for main, parts in quantised.items()
        for ending in scheme.suffixes
        if ending not in parts
    ]
    if lost:
        raise ConfigError(f"lacks {summary(sorted(lost))}, parts of weights that are quantised as {scheme.label}")
    taken |= {main.removesuffix(WEIGHT) + ending for main in quantised for ending in scheme.ignored_suffixes}
    plain = {name: {"": name} for name in names if name not in taken}
    twice = sorted(plain.keys() & quantised.keys())
    if twice:
        raise ConfigError(f"holds {summary(twice)} both plain and quantised")
    return plain | quantised
