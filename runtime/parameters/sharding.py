"""Slices of parameters, and the shards of weights, heads, experts and vocabulary that a rank stores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from runtime.distributed.process_group import TensorParallelGroup

Index = tuple[int | slice, ...]


@dataclass(frozen=True)
class WeightSlice:
    """A rectangular slice of a parameter.

    Attributes:
        ranges: the range of each dimension.
        indexed: the dimensions that the index selects by an int.
    """

    ranges: tuple[range, ...]
    indexed: frozenset[int] = frozenset()

    @classmethod
    def of(cls, shape: Sequence[int], index: Index) -> WeightSlice:
        """Returns the slice [index] of a parameter of `shape`.

        Raises:
            ValueError: the index is out of range, empty or has a step.
        """
        ranges, indexed = [], []
        valid = len(index) <= len(shape)
        for n, size in enumerate(shape):
            at = index[n] if n < len(index) else slice(None)
            if isinstance(at, int):
                taken = range(at, at + 1)
                indexed.append(n)
            else:
                taken = range(at.start or 0, size if at.stop is None else at.stop)
                valid = valid and at.step in (None, 1)
            valid = valid and 0 <= taken.start < taken.stop <= size
            ranges.append(taken)
        if not valid:
            raise ValueError(f"{index} is no part of a weight {list(shape)}")
        return cls(tuple(ranges), frozenset(indexed))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the checkpoint tensor for the slice, which lacks the indexed dimensions."""
        return tuple(len(r) for n, r in enumerate(self.ranges) if n not in self.indexed)

    @property
    def size(self) -> int:
        return math.prod(map(len, self.ranges))

    @property
    def slices(self) -> tuple[slice, ...]:
        """The slices of the parameter, one per dimension."""
        return tuple(slice(r.start, r.stop) for r in self.ranges)

    @property
    def tensor_slices(self) -> tuple[slice, ...]:
        """The slices that select the complete checkpoint tensor."""
        return tuple(slice(0, size) for size in self.shape)


@dataclass(frozen=True)
class Shard:
    """The part of a parameter that a rank stores: concatenated ranges of one dimension, and the others in full.

    Attributes:
        dim: the sharded dimension, counted from the last: -1.
        length: its length in the full parameter.
        ranges: the stored ranges.
    """

    dim: int
    length: int
    ranges: tuple[range, ...]

    def full_shape(self, local: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the full parameter from that of the shard."""
        sizes = list(local)
        sizes[self.dim] = self.length
        return tuple(sizes)

    def local_shape(self, full: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the shard from that of the full parameter."""
        sizes = list(full)
        if sizes[self.dim] != self.length:
            raise ValueError(f"{self} is no shard of {list(full)}")
        sizes[self.dim] = sum(map(len, self.ranges))
        return tuple(sizes)

    def intersect(self, part: WeightSlice) -> Iterator[tuple[WeightSlice, tuple[slice, ...]]]:
        """Yields the stored parts of a slice of the full parameter.

        Each is a slice of the shard, with the matching slices of the checkpoint tensor.
        """
        dim = len(part.ranges) + self.dim
        requested, first = part.ranges[dim], 0
        for stored in self.ranges:
            start, stop = max(stored.start, requested.start), min(stored.stop, requested.stop)
            if start < stop:
                local = list(part.ranges)
                local[dim] = range(first + start - stored.start, first + stop - stored.start)
                tensor_slices = [slice(0, len(r)) for r in part.ranges]
                tensor_slices[dim] = slice(start - requested.start, stop - requested.start)
                box = tuple(s for n, s in enumerate(tensor_slices) if n not in part.indexed)
                yield WeightSlice(tuple(local), part.indexed), box
            first += len(stored)


@dataclass(frozen=True)
class VocabShard:
    """The ids that this rank stores (`local`) of a vocabulary of `vocab_size`; other ranks have the rest."""

    local: range
    vocab_size: int
    group: TensorParallelGroup

    def local_index(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the local index of each id, in range also for ids of other ranks, and bool, whether it is local."""
        index = ids - self.local.start
        return index.clamp(0, len(self.local) - 1), (index >= 0) & (index < len(self.local))


def local_expert_ids(ids: torch.Tensor, local: range | None) -> torch.Tensor:
    """Returns local expert ids, -1 for experts of other ranks, which the kernels skip.

    `local`: the experts that this rank stores, with expert parallelism; None: all.
    """
    if local is None:
        return ids
    index = ids - local.start
    return torch.where((index >= 0) & (index < len(local)), index, -1)


@dataclass(frozen=True)
class HeadShard:
    """Ranges of query heads and of KV heads."""

    queries: range
    keys: range
    dim: int

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.queries), len(self.keys)

    def qkv_ranges(self, heads: int, kv_heads: int, *, values: bool = True) -> tuple[range, ...]:
        """Returns the rows of these heads in the full QKV weight, which has no V rows without `values`.

        Args:
            heads: query heads of the model.
            kv_heads: KV heads of the model.
        """
        starts = (0, heads, heads + kv_heads)[: 3 if values else 2]
        parts = (self.queries, self.keys, self.keys)
        return tuple(
            range((start + own.start) * self.dim, (start + own.stop) * self.dim)
            for start, own in zip(starts, parts, strict=False)
        )
