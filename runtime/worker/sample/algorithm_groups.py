"""A rule of the step and its blocks: which of the sampled rows are its own, and what it does with and learns of their
logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from runtime.algorithms import sampling
from runtime.algorithms.base import MERGED, Rows, Rule, Stat
from runtime.algorithms.logits_ops import Vocabulary
from runtime.worker.input_batch import GroupShape

Place = tuple[torch.Tensor, torch.Tensor]  # block and offset of each row
Given = Mapping[str, torch.Tensor]  # what ``worker.input_batch`` names, on the device


@dataclass(frozen=True)
class Span:
    """Some of a group's rows, one after the other: those of the sampled rows, and where that is in its part of them."""

    rows: slice
    part: slice


@dataclass(frozen=True)
class Group:
    """A rule and its blocks: `members` of the plan's, None for all of them, each row of `params` one of them.

    Its sampled rows are ``[first, first + shape.rows)``; `own` says of every sampled row which of its group's blocks
    it is of.
    """

    rule: Rule
    shape: GroupShape
    first: int
    members: torch.Tensor | None
    own: torch.Tensor
    params: torch.Tensor
    kept: torch.Tensor | None
    top: sampling.Top | None  # [its blocks, B, count], to be written
    vocabulary: Vocabulary

    @property
    def wants(self) -> Stat:
        return Stat(self.shape.wants)

    def within(self, part: slice, last: int | None = None) -> Span | None:
        """Its rows, or the last so many of them, that lie in a part of the sampled ones; None if there are none."""
        end = self.first + self.shape.rows
        begin = self.first if last is None else end - last
        begin, end = max(begin, part.start), min(end, part.stop)
        return Span(slice(begin, end), slice(begin - part.start, end - part.start)) if begin < end else None

    def current(self, logits: torch.Tensor, here: Place, tokens: torch.Tensor, current: torch.Tensor) -> None:
        """Writes the plain probability of the token at each of some of its positions."""
        last = self.vocabulary.size(logits) - 1
        current[here] = self.vocabulary.probability(logits, tokens[here].clamp(max=last))

    def seen(
        self, own: Place, tokens: torch.Tensor, masked: torch.Tensor, advanced: torch.Tensor, *, fixed: bool
    ) -> Rows:
        """Some of its rows, whose blocks are numbered as its own, as the rule sees them."""
        if self.members is not None:
            tokens, masked, advanced = tokens[self.members], masked[self.members], advanced[self.members]
        block, at = own
        params, columns = self.params[block], self.rule.columns
        return Rows(
            tokens, masked, block, at, advanced[block], params, columns, self.kept, fixed, self.vocabulary
        )  # fmt: skip

    def likeliest(self, logits: torch.Tensor, own: Place) -> None:
        """Writes into `top` the likeliest tokens at each of some of its positions, as many as its request mixes."""
        assert self.top is not None
        block, at = own
        found = self.vocabulary.top(logits, self.top.ids.shape[2])
        count = self.params[block, self.rule.columns[MERGED.name]]
        beyond = torch.arange(self.top.ids.shape[2], device=block.device) >= count[:, None]
        self.top.ids[block, at], self.top.probs[block, at] = found.ids, found.probs.masked_fill(beyond, 0)


def make_groups(
    rules: list[Rule], shapes: tuple[GroupShape, ...], given: Given, size: int, kind: torch.dtype,
    vocabulary: Vocabulary,
) -> list[Group]:  # fmt: skip
    """The groups of a step. `size`: of its blocks. `kind`: float dtype of the probabilities."""
    made = []
    first = 0
    for i, (rule, shape) in enumerate(zip(rules, shapes, strict=True)):
        params, top = given[f"params{i}"], None
        if shape.top:
            ids = params.new_zeros((shape.blocks, size, shape.top), dtype=torch.int64)
            top = sampling.Top(ids, torch.zeros_like(ids, dtype=kind))
        members, own = (None, given["block"]) if len(shapes) == 1 else (given[f"members{i}"], given["own"])
        # written to, so that what came from the host stays as it was
        kept = given[f"kept{i}"].clone() if shape.records else None
        made.append(Group(rule, shape, first, members, own, params, kept, top, vocabulary))
        first += shape.rows
    return made
