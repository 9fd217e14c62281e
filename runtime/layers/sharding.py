"""Boxes of a weight's coordinates, and which of them, heads, experts and ids this process keeps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from runtime.distributed.process_group import TensorParallelGroup

Index = tuple[int | slice, ...]


@dataclass(frozen=True)
class Part:
    """A box of a weight's coordinates: `ranges` along each of its dimensions. A checkpoint's tensor of it has `shape`,
    which lacks those dimensions that the index names a single place of (`single`)."""

    ranges: tuple[range, ...]
    shape: tuple[int, ...]
    single: frozenset[int] = frozenset()

    @classmethod
    def of(cls, shape: Sequence[int], index: Index) -> Part:
        """Of a weight of `shape`; ValueError for what lies outside, is empty or leaves gaps."""
        every = (*index, *(slice(None),) * (len(shape) - len(index)))
        ranges = tuple(
            range(at, at + 1) if isinstance(at, int) else range(at.start or 0, size if at.stop is None else at.stop)
            for at, size in zip(every, shape, strict=False)
        )
        steps = {at.step for at in every if isinstance(at, slice)}
        inside = all(0 <= r.start < r.stop <= size for r, size in zip(ranges, shape, strict=True))
        if len(every) > len(shape) or not inside or not steps <= {None, 1}:
            raise ValueError(f"{index} is no part of a weight {list(shape)}")
        single = frozenset(n for n, at in enumerate(every) if isinstance(at, int))
        return cls(ranges, tuple(len(r) for n, r in enumerate(ranges) if n not in single), single)

    @property
    def size(self) -> int:
        return math.prod(map(len, self.ranges))

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(r.start, r.stop) for r in self.ranges)

    @property
    def box(self) -> tuple[slice, ...]:
        """All of the tensor."""
        return tuple(slice(0, size) for size in self.shape)


@dataclass(frozen=True)
class Share:
    """What is kept of a weight, of which other processes keep the rest: along one of its dimensions (`dim`, counted
    from the last: -1) the places of `runs`, one run after the other; all of the other dimensions."""

    dim: int
    length: int  # of the whole's dimension
    runs: tuple[range, ...]

    def whole(self, kept: Sequence[int]) -> tuple[int, ...]:
        """The whole's sizes, by those of what is kept."""
        sizes = list(kept)
        sizes[self.dim] = self.length
        return tuple(sizes)

    def kept(self, whole: Sequence[int]) -> tuple[int, ...]:
        """The other way round."""
        sizes = list(whole)
        if sizes[self.dim] != self.length:
            raise ValueError(f"{self} is no share of {list(whole)}")
        sizes[self.dim] = sum(map(len, self.runs))
        return tuple(sizes)

    def pieces(self, part: Part) -> Iterator[tuple[Part, tuple[slice, ...]]]:
        """What of a part of the whole is kept: as parts of what is kept, and as boxes of the part's tensor."""
        dim = len(part.ranges) + self.dim
        asked, first = part.ranges[dim], 0
        for run in self.runs:
            start, stop = max(run.start, asked.start), min(run.stop, asked.stop)
            if start < stop:
                kept = list(part.ranges)
                kept[dim] = range(first + start - run.start, first + stop - run.start)
                box = [slice(0, len(r)) for r in part.ranges]
                box[dim] = slice(start - asked.start, stop - asked.start)
                yield (
                    Part(tuple(kept), tuple(len(r) for n, r in enumerate(kept) if n not in part.single), part.single),
                    tuple(cut for n, cut in enumerate(box) if n not in part.single),
                )
            first += len(run)


@dataclass(frozen=True)
class Ids:
    """Of a vocabulary of `whole` ids those that are here (`here`); the group's other processes have the others."""

    here: range
    whole: int
    group: TensorParallelGroup

    def at(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Where ids are among those that are here, somewhere for the others; and bool, whether they are."""
        at = ids - self.here.start
        return at.clamp(0, len(self.here) - 1), (at >= 0) & (at < len(self.here))


@dataclass(frozen=True)
class Experts:
    """Of a mixture's experts those that are here; each of them whole."""

    here: range

    def at(self, ids: torch.Tensor) -> torch.Tensor:
        """Where experts are among those that are here; -1 for the others, as kernels know nobody's."""
        at = ids - self.here.start
        return torch.where((at >= 0) & (at < len(self.here)), at, -1)


@dataclass(frozen=True)
class Heads:
    """Heads of queries and of keys; of the whole model's, or of those that are here."""

    queries: range
    keys: range
    dim: int

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.queries), len(self.keys)

    def runs(self, heads: int, kv_heads: int, *, values: bool = True) -> tuple[range, ...]:
        """Their rows in one product of the queries, keys and (`values`) values of so many heads."""
        starts = (0, heads, heads + kv_heads)[: 3 if values else 2]
        every = (self.queries, self.keys, self.keys)
        return tuple(
            range((start + own.start) * self.dim, (start + own.stop) * self.dim)
            for start, own in zip(starts, every, strict=False)
        )
