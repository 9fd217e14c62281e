"""The pool of keys and values: every layer's pages, one page id for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch


@dataclass(frozen=True)
class KVShape:
    """What one layer stores of a token: `heads` keys of `k_dim` and values of `v_dim`. `window`: how far back the
    layer's queries see (decoding.md 2); None: to the beginning."""

    heads: int
    k_dim: int
    v_dim: int
    window: int | None = None

    @property
    def width(self) -> int:
        """Numbers a token takes."""
        return self.heads * (self.k_dim + self.v_dim)


class LayerKV(NamedTuple):
    """One layer's pages."""

    k: torch.Tensor  # [pages, page_size, heads, k_dim]
    v: torch.Tensor  # [pages, page_size, heads, v_dim]


class KVPool(Protocol):
    """A layout of the pool; nothing else knows it."""

    num_pages: int
    page_size: int
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int: ...

    def layer(self, index: int) -> LayerKV:
        """Where layer `index` reads and writes."""
        ...


def page_bytes(shapes: Sequence[KVShape], page_size: int, dtype: torch.dtype) -> int:
    """Bytes that one page takes in all layers together."""
    return page_size * dtype.itemsize * sum(shape.width for shape in shapes)


class UnifiedPool:
    """Tokens of a page follow each other, with all their heads: [layers, pages, page_size, heads, dim], one such tensor
    of keys and one of values for all layers of like shape. Holds zeros at first."""

    def __init__(
        self,
        shapes: Sequence[KVShape],
        *,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self.num_pages, self.page_size, self.dtype = num_pages, page_size, dtype
        self.device = torch.device(device)
        self.tensors: list[torch.Tensor] = []  # keys and values of each kind of layer
        self._layers: list[LayerKV] = [LayerKV(torch.empty(0), torch.empty(0))] * len(shapes)
        kinds = [replace(shape, window=None) for shape in shapes]
        for kind in dict.fromkeys(kinds):
            mine = [index for index, other in enumerate(kinds) if other == kind]
            k, v = (
                torch.zeros(len(mine), num_pages, page_size, kind.heads, dim, dtype=dtype, device=self.device)
                for dim in (kind.k_dim, kind.v_dim)
            )
            self.tensors += [k, v]
            for at, index in enumerate(mine):
                self._layers[index] = LayerKV(k[at], v[at])

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def layer(self, index: int) -> LayerKV:
        return self._layers[index]
