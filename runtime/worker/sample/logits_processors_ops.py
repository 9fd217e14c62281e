"""What requests have done to logits before rules and choices see them (docs/decoding.md, What shapes the logits)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.algorithms.logits_ops import LogitsOps


@dataclass(frozen=True)
class Shapes:
    """Of some rows of logits. `ids` may hold one of a row's several times, with the same numbers."""

    ids: torch.Tensor  # int64 [rows, n]
    seen: torch.Tensor  # int64 [rows, n], how often prompt and answer hold it
    counts: torch.Tensor  # int64 [rows, n], how often the answer does
    bias: torch.Tensor  # float64 [rows, n]
    least: torch.Tensor  # int64 [rows, n], positions of the answer below it may not choose it
    penalties: torch.Tensor  # float64 [rows, 3], repetition, presence, frequency
    position: torch.Tensor  # int64 [rows], in the answer
    own: torch.Tensor  # int64 [rows], the token that stands there and is counted, -1 if none


def shape_rows(logits: torch.Tensor, shapes: Shapes, vocabulary: LogitsOps) -> None:
    """In place: [rows, vocab]. The bias is added first, then come the penalties, repetition before the others. The
    token that stands at a row's own position does not count against itself."""
    kind = logits.dtype
    repetition, presence, frequency = (column[:, None].to(kind) for column in shapes.penalties.unbind(1))
    own = (shapes.ids == shapes.own[:, None]).long()
    counts = (shapes.counts - own).clamp(min=0)
    values = vocabulary.gather(logits, shapes.ids) + shapes.bias.to(kind)
    repeated = torch.where(values > 0, values / repetition, values * repetition)
    values = torch.where(shapes.seen > own, repeated, values)
    values = values - frequency * counts.to(kind) - presence * (counts > 0).to(kind)
    values = values.masked_fill(shapes.position[:, None] < shapes.least, float("-inf"))
    vocabulary.scatter(logits, shapes.ids, values)
