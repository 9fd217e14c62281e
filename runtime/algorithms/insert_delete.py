"""`edit` for models that insert and delete with two edit tokens (docs/decoding-rules.md#insert-and-delete; LLaDA2.2).

A record has three numbers for each position. They are its content before a step, the token that the step took there,
and whether an original mask is there after the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from runtime.algorithms.base import BlockBatch, Decision, Orders, Rows, Stat, register_heeding
from runtime.algorithms.common import ACCEPT, rank
from runtime.algorithms.edit import EDIT, MAX_POST_EDIT, Edit

MOST_POST_EDITS = 256  # a block's records are as many as its steps, and every step reads them all

CONTENT, TAKEN, ORIGINAL = range(3)  # of a record; tokens count from 1, and 0 is none
ORIGINAL_MASK, INTRODUCED_MASK = -1, -2  # as content
# Until a step is decided, its record has tokens in place of what it will take and leave.
FRESH, PLAIN = TAKEN, ORIGINAL  # the likeliest that no earlier step took there; the likeliest that is no order


@register_heeding("edit")
class InsertDelete(Edit):
    fields = tuple(replace(f, high=MOST_POST_EDITS) if f is MAX_POST_EDIT else f for f in Edit.fields)
    keeps = ("content", "taken", "original")
    moves = True

    def __init__(self, orders: Orders) -> None:
        super().__init__()
        self.orders = orders

    def wants(self, values: Mapping[str, Any]) -> Stat:
        return super().wants(values) | Stat.ADJUST

    def adjust(self, logits: torch.Tensor, rows: Rows) -> None:
        """The penalty; and what a position may take instead of its candidate, where this step may ask for it."""
        assert rows.kept is not None
        super().adjust(logits, rows)
        past = _past(rows.kept, rows.tokens, rows.masked)
        limit = rows.value(MAX_POST_EDIT.name)
        record = rows.kept[rows.block, rows.at, -1]
        may_end = (limit == 0) | _due(past, rows.block, limit, rows.tokens.shape[1])
        if rows.fixed or bool(may_end.any()):
            plain = rows.vocabulary.but(logits, (self.orders.delete, self.orders.split))
            record[:, PLAIN] = (plain + 1).double()
        if rows.fixed or bool(past.repeats.any()):
            earlier = rows.kept[rows.block, rows.at, :-1, TAKEN]
            ids = (earlier.long() - 1).clamp(min=0)
            best, there = rows.vocabulary.unlike(logits, ids, earlier > 0)
            record[:, FRESH] = torch.where(there, best + 1, 0).double()
        rows.kept[rows.block, rows.at, -1] = record

    def decide(self, blocks: BlockBatch) -> Decision:
        assert blocks.kept is not None
        masked, size = blocks.masked, blocks.tokens.shape[1]
        past = _past(blocks.kept, blocks.tokens, masked)
        limit = blocks.value(MAX_POST_EDIT.name)
        last = _due(past, torch.arange(len(masked), device=masked.device), limit, size)

        left = past.original.any(1)
        confident = masked & (blocks.conf > blocks.param(ACCEPT.name))
        least = 1 + (masked & ~past.original).sum(1)
        short = blocks.may_force & left & (confident.sum(1) < least)
        best = masked & (rank(blocks.conf, masked) < least[:, None])
        accepted = torch.where(short[:, None], best, confident) | (masked & (blocks.capped() | ~left[:, None]))
        last |= (limit == 0) & ~(past.original & ~accepted).any(1)
        accepted |= masked & last[:, None]
        edited = blocks.filled & (blocks.conf > blocks.param(EDIT.name)) & (blocks.choice != blocks.tokens)

        written = accepted | edited
        token = self._tokens(blocks, written, last, past.repeats)
        edited &= token != blocks.tokens
        deleted = written & (token == self.orders.delete)
        split = written & (token == self.orders.split)
        after = _laid_out(
            blocks,
            tokens=torch.where(written & ~split, token, blocks.tokens),
            masked=masked & (split | ~accepted),
            original=past.original,
            deleted=deleted,
            split=split,
        )
        content = torch.where(past.original, ORIGINAL_MASK, torch.where(masked, INTRODUCED_MASK, blocks.tokens + 1))
        taken = torch.where(written, token + 1, 0)
        blocks.kept[:, :, -1] = torch.stack([content, taken, after.original.long()], 2).double()
        at_rest = ~(masked | after.masked | (after.tokens != blocks.tokens)).any(1)
        return Decision(
            tokens=after.tokens,
            masked=after.masked,
            forced=short & ~confident.any(1),
            edited=edited,
            remasked=torch.zeros_like(masked),
            ended=last | at_rest,
        )

    def _tokens(
        self, blocks: BlockBatch, written: torch.Tensor, last: torch.Tensor, repeats: torch.Tensor
    ) -> torch.Tensor:
        """int64 [n, B]: what each position takes if it takes anything. A block's last step orders nothing; in a block
        that repeats itself the least confident takes another than before."""
        assert blocks.kept is not None
        token = blocks.choice
        order = (token == self.orders.delete) | (token == self.orders.split)
        plain = blocks.kept[:, :, -1, PLAIN].long() - 1
        token = torch.where(last[:, None] & order & written, plain, token)
        fresh = blocks.kept[:, :, -1, FRESH].long() - 1
        doubt = torch.nn.functional.one_hot(blocks.conf.masked_fill(~written, float("inf")).argmin(1), token.shape[1])
        again = (repeats & ~last)[:, None] & doubt.bool() & written & (fresh >= 0)
        return torch.where(again, fresh, token)


@dataclass(frozen=True)
class _Past:
    """What `n` blocks' earlier steps say of them, and of their content now."""

    steps: torch.Tensor  # int64 [n]
    post_edits: torch.Tensor  # int64 [n], steps that began with no original mask
    repeats: torch.Tensor  # bool [n], an earlier step began with the same content
    original: torch.Tensor  # bool [n, B], original masks


def _past(kept: torch.Tensor, tokens: torch.Tensor, masked: torch.Tensor) -> _Past:
    """`kept` [n, B, records, 3], the last record being this step's; `tokens`, `masked` [n, B]."""
    content = kept[:, :, :-1, CONTENT]
    there = content[:, 0] != 0
    steps = there.sum(1)
    now = torch.where(masked, ORIGINAL_MASK, tokens + 1).double()
    same = (content.clamp(min=ORIGINAL_MASK) == now[:, :, None]) | (content == 0)  # 0: past the end of a smaller block
    newest = (steps - 1).clamp(min=0)[:, None, None].expand(-1, tokens.shape[1], 1)
    original = kept[..., ORIGINAL].gather(2, newest)[:, :, 0] > 0
    return _Past(
        steps=steps,
        post_edits=(there & (content != ORIGINAL_MASK).all(1)).sum(1),
        repeats=(there & same.all(1)).any(1),
        original=masked & (original | (steps == 0)[:, None]),
    )


def _due(past: _Past, block: torch.Tensor, limit: torch.Tensor, size: int) -> torch.Tensor:
    """bool like `block`: whether a limit makes this step the block's last, `limit` being each one's on post edits."""
    edits = ~past.original.any(1)[block] & (past.post_edits[block] + 1 >= limit)
    return edits | (past.steps[block] + 1 >= size + limit)


@dataclass(frozen=True)
class _Content:
    """Of `n` blocks, each [n, B]."""

    tokens: torch.Tensor
    masked: torch.Tensor
    original: torch.Tensor  # original masks


def _laid_out(
    blocks: BlockBatch,
    *,
    tokens: torch.Tensor,
    masked: torch.Tensor,
    original: torch.Tensor,
    deleted: torch.Tensor,
    split: torch.Tensor,
) -> _Content:
    """The content of the positions that are not fixed, one after another: without what is deleted, a mask before what
    is split, cut or filled up with masks at the end."""
    n, size = tokens.shape
    free = blocks.masked | blocks.filled
    here = torch.arange(size, device=tokens.device).expand(n, size)
    stays = free & ~deleted
    place = (stays.long() + (stays & split)).cumsum(1) - 1  # among what is not fixed, after the step
    none = 2 * size
    source = torch.full((n, none + 1), size, device=tokens.device)  # `size`: a mask that was not there before
    source.scatter_(1, torch.where(stays, place, none), here)
    origin = torch.where(free, source.gather(1, (free.cumsum(1) - 1).clamp(min=0)), here)
    new = origin == size
    origin = origin.clamp(max=size - 1)
    still = masked.gather(1, origin)
    return _Content(tokens.gather(1, origin), new | still, ~new & still & original.gather(1, origin))
