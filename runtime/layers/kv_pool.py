"""The pool of keys and values: every layer's pages, one page id for all of them, in one of two layouts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple, Protocol, Self

import torch

PIECE = 8  # numbers of a key that lie side by side where keys are cut


@dataclass(frozen=True)
class KVShape:
    """Shape of the K/V that a layer stores per token: `heads` keys of `k_dim` and values of `v_dim`.

    `window` is that of docs/decoding-rules.md#sliding-windows; None means that there is none.
    """

    heads: int
    k_dim: int
    v_dim: int
    window: int | None = None


class LayerKV(NamedTuple):
    """One layer's pages: views whose strides are the layout (``runtime.kernels.pages``)."""

    k: torch.Tensor  # [pages, page_size, heads, pieces, piece], pieces * piece at least k_dim
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

    def like(self, num_pages: int) -> Self:
        """An empty pool for the same layers in the same layout, of `num_pages` pages."""
        ...


class PagedPool(ABC):
    """What the layouts share: one tensor of keys and one of values, [layers, pages, ...], for all layers of like shape.
    Holds zeros at first."""

    def __init__(
        self,
        shapes: Sequence[KVShape],
        *,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self.shapes = tuple(shapes)
        self.num_pages, self.page_size, self.dtype = num_pages, page_size, dtype
        self.device = torch.device(device)
        self.tensors: list[torch.Tensor] = []  # keys and values of each kind of layer
        self._layers: list[LayerKV] = [LayerKV(torch.empty(0), torch.empty(0))] * len(shapes)
        kinds = [replace(shape, window=None) for shape in shapes]
        for kind in dict.fromkeys(kinds):
            mine = [index for index, other in enumerate(kinds) if other == kind]
            k, v = (
                torch.zeros(len(mine), num_pages, *page, dtype=dtype, device=self.device)
                for page in self.page_of(kind, page_size)
            )
            self.tensors += [k, v]
            for at, index in enumerate(mine):
                self._layers[index] = self.view(k[at], v[at])

    @staticmethod
    @abstractmethod
    def page_of(shape: KVShape, page_size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The dimensions of a page of keys, and of values, as they lie in memory."""

    @staticmethod
    @abstractmethod
    def view(k: torch.Tensor, v: torch.Tensor) -> LayerKV:
        """One layer's pages, given as they lie in memory."""

    @classmethod
    def page_bytes(cls, shapes: Sequence[KVShape], page_size: int, dtype: torch.dtype) -> int:
        """Bytes that one page takes in all layers together."""
        return dtype.itemsize * sum(prod(page) for shape in shapes for page in cls.page_of(shape, page_size))

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def layer(self, index: int) -> LayerKV:
        return self._layers[index]

    def like(self, num_pages: int) -> Self:
        return type(self)(
            self.shapes, num_pages=num_pages, page_size=self.page_size, dtype=self.dtype, device=self.device
        )


class UnifiedPool(PagedPool):
    """Tokens of a page follow each other, with all their heads: [page_size, heads, dim] of keys and of values."""

    @staticmethod
    def page_of(shape: KVShape, page_size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (page_size, shape.heads, shape.k_dim), (page_size, shape.heads, shape.v_dim)

    @staticmethod
    def view(k: torch.Tensor, v: torch.Tensor) -> LayerKV:
        return LayerKV(k.unsqueeze(3), v)


class DistinctPool(PagedPool):
    """Each head for itself: keys cut into pieces of 8 numbers, [heads, pieces, page_size, 8], so that the same piece of
    a page's keys lies together; values transposed, [heads, v_dim, page_size], so that the same number of them does."""

    @staticmethod
    def page_of(shape: KVShape, page_size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        pieces = -(-shape.k_dim // PIECE)
        return (shape.heads, pieces, page_size, PIECE), (shape.heads, shape.v_dim, page_size)

    @staticmethod
    def view(k: torch.Tensor, v: torch.Tensor) -> LayerKV:
        return LayerKV(k.permute(0, 3, 1, 2, 4), v.permute(0, 3, 1, 2))


LAYOUTS: dict[str, type[PagedPool]] = {"unified": UnifiedPool, "distinct": DistinctPool}  # --kv-cache-layout
