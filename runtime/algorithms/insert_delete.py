"""`edit` for models that insert and delete with two edit tokens.

See docs/research/decoding-rules.md#insert-and-delete; LLaDA2.2.

A record has three numbers for each position: its content before the step, the token that the step wrote there, and
whether an original mask is there after the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from runtime.algorithms import base
from runtime.algorithms.edit import EDIT, MAX_POST_EDIT, Edit

MAX_POST_EDITS = 256  # a block has one record per step, and every step reads all of them

CONTENT, TAKEN, ORIGINAL = range(3)  # fields of a record; token ids are stored plus 1, and 0 means no token
ORIGINAL_MASK, INTRODUCED_MASK = -1, -2  # values of CONTENT
# Until `decide` has run, the record of the step has alternatives to the candidate in these fields.
UNUSED_ARGMAX, TEXT_ARGMAX = TAKEN, ORIGINAL  # argmax without tokens of earlier steps; argmax without edit tokens


@base.register_indel_variant("edit")
class InsertDelete(Edit):
    fields = tuple(replace(f, high=MAX_POST_EDITS) if f is MAX_POST_EDIT else f for f in Edit.fields)
    history_fields = ("content", "taken", "original")
    reorders_tokens = True

    def __init__(self, edit_tokens: base.EditTokens) -> None:
        super().__init__()
        self.edit_tokens = edit_tokens

    def algorithm_stats(self, values: Mapping[str, Any]) -> base.LogitStat:
        return super().algorithm_stats(values) | base.LogitStat.PROCESS_LOGITS

    def process_logits(self, logits: torch.Tensor, rows: base.SampledRows) -> None:
        """Applies the penalty, and records the alternatives to the candidate if this step may need them."""
        assert rows.history is not None
        super().process_logits(logits, rows)
        past = _past(rows.history, rows.tokens, rows.masked)
        limit = rows.value(MAX_POST_EDIT.name)
        record = rows.history[rows.block, rows.offset, -1]
        may_be_last = (limit == 0) | _is_last_step(past, rows.block, limit, rows.tokens.shape[1])
        if rows.graph_safe or bool(may_be_last.any()):
            argmax = rows.logits_ops.argmax_excluding(logits, (self.edit_tokens.delete, self.edit_tokens.split))
            record[:, TEXT_ARGMAX] = (argmax + 1).double()
        if rows.graph_safe or bool(past.repeats.any()):
            earlier = rows.history[rows.block, rows.offset, :-1, TAKEN]
            ids = (earlier.long() - 1).clamp(min=0)
            argmax, found = rows.logits_ops.argmax_excluding_rows(logits, ids, earlier > 0)
            record[:, UNUSED_ARGMAX] = torch.where(found, argmax + 1, 0).double()
        rows.history[rows.block, rows.offset, -1] = record

    def decide(self, blocks: base.BlockBatch) -> base.BlockUpdate:
        assert blocks.history is not None
        masked, size = blocks.masked, blocks.tokens.shape[1]
        past = _past(blocks.history, blocks.tokens, masked)
        limit = blocks.value(MAX_POST_EDIT.name)
        last = _is_last_step(past, torch.arange(len(masked), device=masked.device), limit, size)

        has_original = past.original.any(1)
        confident = masked & (blocks.confidence > blocks.param(base.ACCEPT.name))
        min_tokens = 1 + (masked & ~past.original).sum(1)
        too_few = blocks.must_advance & has_original & (confident.sum(1) < min_tokens)
        best = masked & (base.score_order(blocks.confidence, masked) < min_tokens[:, None])
        accepted = torch.where(too_few[:, None], best, confident)
        accepted |= masked & (blocks.at_step_limit() | ~has_original[:, None])
        last |= (limit == 0) & ~(past.original & ~accepted).any(1)
        accepted |= masked & last[:, None]
        edited = blocks.unmasked & (blocks.confidence > blocks.param(EDIT.name)) & (blocks.candidates != blocks.tokens)

        written = accepted | edited
        token = self._tokens(blocks, written, last, past.repeats)
        edited &= token != blocks.tokens
        deleted = written & (token == self.edit_tokens.delete)
        split = written & (token == self.edit_tokens.split)
        after = _shifted(
            blocks,
            tokens=torch.where(written & ~split, token, blocks.tokens),
            masked=masked & (split | ~accepted),
            original=past.original,
            deleted=deleted,
            split=split,
        )
        content = torch.where(past.original, ORIGINAL_MASK, torch.where(masked, INTRODUCED_MASK, blocks.tokens + 1))
        taken = torch.where(written, token + 1, 0)
        blocks.history[:, :, -1] = torch.stack([content, taken, after.original.long()], 2).double()
        unchanged = ~(masked | after.masked | (after.tokens != blocks.tokens)).any(1)
        return base.BlockUpdate(
            tokens=after.tokens,
            masked=after.masked,
            forced=too_few & ~confident.any(1),
            edited=edited,
            remasked=torch.zeros_like(masked),
            finished=last | unchanged,
        )

    def _tokens(
        self, blocks: base.BlockBatch, written: torch.Tensor, last: torch.Tensor, repeats: torch.Tensor
    ) -> torch.Tensor:
        """Returns the token of each position if it is written, int64 [n, B].

        The last step of a block writes no edit tokens. If a block repeats an earlier content, its least confident
        position gets a token that no earlier step wrote there.
        """
        assert blocks.history is not None
        token = blocks.candidates
        is_edit = (token == self.edit_tokens.delete) | (token == self.edit_tokens.split)
        text = blocks.history[:, :, -1, TEXT_ARGMAX].long() - 1
        token = torch.where(last[:, None] & is_edit & written, text, token)
        unused = blocks.history[:, :, -1, UNUSED_ARGMAX].long() - 1
        lowest = blocks.confidence.masked_fill(~written, float("inf")).argmin(1)
        least_confident = torch.nn.functional.one_hot(lowest, token.shape[1]).bool()
        replaced = (repeats & ~last)[:, None] & least_confident & written & (unused >= 0)
        return torch.where(replaced, unused, token)


@dataclass(frozen=True)
class _Past:
    """Summary of the history of `n` blocks, in relation to their current content."""

    steps: torch.Tensor  # int64 [n]
    post_edits: torch.Tensor  # int64 [n], steps that began without original masks
    repeats: torch.Tensor  # bool [n], an earlier step began with the same content
    original: torch.Tensor  # bool [n, B], original masks


def _past(history: torch.Tensor, tokens: torch.Tensor, masked: torch.Tensor) -> _Past:
    """Summarizes the history [n, B, records, 3], whose last record is that of this step."""
    content = history[:, :, :-1, CONTENT]
    exists = content[:, 0] != 0
    steps = exists.sum(1)
    current = torch.where(masked, ORIGINAL_MASK, tokens + 1).double()
    # A content of 0 means that the position is beyond the end of a smaller block.
    same = (content.clamp(min=ORIGINAL_MASK) == current[:, :, None]) | (content == 0)
    newest = (steps - 1).clamp(min=0)[:, None, None].expand(-1, tokens.shape[1], 1)
    original = history[..., ORIGINAL].gather(2, newest)[:, :, 0] > 0
    return _Past(
        steps=steps,
        post_edits=(exists & (content != ORIGINAL_MASK).all(1)).sum(1),
        repeats=(exists & same.all(1)).any(1),
        original=masked & (original | (steps == 0)[:, None]),
    )


def _is_last_step(past: _Past, block: torch.Tensor, limit: torch.Tensor, size: int) -> torch.Tensor:
    """Returns whether a limit makes this step the last one, for each index in `block`. `limit`: of post-edit steps."""
    edits = ~past.original.any(1)[block] & (past.post_edits[block] + 1 >= limit)
    return edits | (past.steps[block] + 1 >= size + limit)


@dataclass(frozen=True)
class _Content:
    """The content of `n` blocks, [n, B] each."""

    tokens: torch.Tensor
    masked: torch.Tensor
    original: torch.Tensor  # original masks


def _shifted(
    blocks: base.BlockBatch,
    *,
    tokens: torch.Tensor,
    masked: torch.Tensor,
    original: torch.Tensor,
    deleted: torch.Tensor,
    split: torch.Tensor,
) -> _Content:
    """Returns the content after deletions and splits have shifted it. FIXED positions do not move.

    A deleted token is removed. A split inserts a mask before the token. The result is truncated, or padded with masks
    at the end.
    """
    n, size = tokens.shape
    editable = blocks.masked | blocks.unmasked
    position = torch.arange(size, device=tokens.device).expand(n, size)
    stays = editable & ~deleted
    target = (stays.long() + (stays & split)).cumsum(1) - 1  # index among the positions that are not FIXED
    none = 2 * size
    source = torch.full((n, none + 1), size, device=tokens.device)  # `size`: a new mask
    source.scatter_(1, torch.where(stays, target, none), position)
    origin = torch.where(editable, source.gather(1, (editable.cumsum(1) - 1).clamp(min=0)), position)
    new = origin == size
    origin = origin.clamp(max=size - 1)
    still = masked.gather(1, origin)
    return _Content(tokens.gather(1, origin), new | still, ~new & still & original.gather(1, origin))
