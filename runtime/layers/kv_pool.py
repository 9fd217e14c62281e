"""Paged KV pool: the pages of every layer, with common page ids, in one of two layouts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple, Self

import torch

CPU_POOL_BYTES = 1 << 30  # largest pool on a CPU, unless --num-pages sets another
PIECE = 8  # contiguous elements of a key in the `distinct` layout


@dataclass(frozen=True)
class KVShape:
    """Shape of the K/V that a layer stores per token: `heads` keys of `k_dim` and values of `v_dim`.

    `window` is that of docs/research/decoding-rules.md#sliding-windows; None means that there is none.
    """

    heads: int
    k_dim: int
    v_dim: int
    window: int | None = None


class LayerKV(NamedTuple):
    """One layer's pages: views whose strides define the layout (``runtime.kernels.paged_attention``)."""

    k: torch.Tensor  # [pages, page_size, heads, pieces, piece], pieces * piece at least k_dim
    v: torch.Tensor  # [pages, page_size, heads, v_dim]


class KVPool(ABC):
    """Base class of the layouts: one tensor of keys and one of values, [layers, pages, ...], per layer shape.

    Zero-initialized.
    """

    def __init__(
        self, shapes: Sequence[KVShape], *, num_pages: int, page_size: int, dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:  # fmt: skip
        self.shapes = tuple(shapes)
        self.num_pages, self.page_size, self.dtype = num_pages, page_size, dtype
        self.device = torch.device(device)
        self.tensors: list[torch.Tensor] = []  # keys and values of each layer shape
        self._layers: list[LayerKV] = [LayerKV(torch.empty(0), torch.empty(0))] * len(shapes)
        kinds = [replace(shape, window=None) for shape in shapes]
        for kind in dict.fromkeys(kinds):
            same_shape = [index for index, other in enumerate(kinds) if other == kind]
            k, v = (
                torch.zeros(len(same_shape), num_pages, *page, dtype=dtype, device=self.device)
                for page in self.page_of(kind, page_size)
            )
            self.tensors += [k, v]
            for at, index in enumerate(same_shape):
                self._layers[index] = self.view(k[at], v[at])

    @staticmethod
    @abstractmethod
    def page_of(shape: KVShape, page_size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the dimensions of a page of keys and of values in memory."""

    @staticmethod
    @abstractmethod
    def view(k: torch.Tensor, v: torch.Tensor) -> LayerKV:
        """Returns one layer's pages from the tensors in memory layout."""

    @classmethod
    def page_bytes(cls, shapes: Sequence[KVShape], page_size: int, dtype: torch.dtype) -> int:
        """Bytes of one page over all layers."""
        return dtype.itemsize * sum(prod(page) for shape in shapes for page in cls.page_of(shape, page_size))

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def layer(self, index: int) -> LayerKV:
        """Returns the pages of layer `index`."""
        return self._layers[index]

    def like(self, num_pages: int) -> Self:
        """Returns an empty pool of `num_pages` pages for the same layers in the same layout."""
        return type(self)(
            self.shapes, num_pages=num_pages, page_size=self.page_size, dtype=self.dtype, device=self.device
        )


class UnifiedPool(KVPool):
    """A page is [page_size, heads, dim] for keys and values."""

    @staticmethod
    def page_of(shape: KVShape, page_size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (page_size, shape.heads, shape.k_dim), (page_size, shape.heads, shape.v_dim)

    @staticmethod
    def view(k: torch.Tensor, v: torch.Tensor) -> LayerKV:
        return LayerKV(k.unsqueeze(3), v)


class DistinctPool(KVPool):
    """Keys are [heads, pieces, page_size, 8], values [heads, v_dim, page_size], so that a page's tokens are contiguous
    per piece of keys and per element of values.
    """

    @staticmethod
    def page_of(shape: KVShape, page_size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        pieces = -(-shape.k_dim // PIECE)
        return (shape.heads, pieces, page_size, PIECE), (shape.heads, shape.v_dim, page_size)

    @staticmethod
    def view(k: torch.Tensor, v: torch.Tensor) -> LayerKV:
        return LayerKV(k.permute(0, 3, 1, 2, 4), v.permute(0, 3, 1, 2))


LAYOUTS: dict[str, type[KVPool]] = {"unified": UnifiedPool, "distinct": DistinctPool}  # --kv-cache-layout
