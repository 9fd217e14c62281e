"""Finds the input rows with soft embeddings or self-conditioning."""

from __future__ import annotations

import numpy as np

from runtime.algorithms.base import LogitStat, SoftEmbeddingParams
from runtime.engine.request import ScheduledRequest
from runtime.engine.step_plan import UNMASKED, SelfConditioningRows, SoftEmbeddingRows, make_row_layout


def soft_embedding_rows(batch: list[ScheduledRequest], offsets: list[int]) -> SoftEmbeddingRows | None:
    """Returns the UNMASKED positions of open blocks with soft tokens; None if there are none.

    Args:
        offsets: see ``input_builder.BatchLayout``.
    """
    ids: list[np.ndarray] = []
    probs: list[np.ndarray] = []
    states: list[np.ndarray] = []
    starts: list[int] = []
    how: list[SoftEmbeddingParams] = []
    for scheduled, offset in zip(batch, offsets, strict=True):
        request = scheduled.request
        if request.soft_embedding_params is None or scheduled.span is None:
            continue
        for block in request.blocks:
            if block.soft_tokens is not None:
                ids.append(block.soft_tokens[0])
                probs.append(block.soft_tokens[1])
                states.append(block.state)
                starts.append(block.start + offset)
                how.append(request.soft_embedding_params)
    if not starts:
        return None
    layout = make_row_layout(tuple([len(state) for state in states]))
    filled = np.flatnonzero(np.concatenate(states) == UNMASKED)
    if not len(filled):
        return None
    count = max([each.shape[1] for each in ids])
    return SoftEmbeddingRows(
        rows=layout.positions(np.array(starts))[filled],
        ids=_pad_columns(ids, count)[filled],
        probs=_pad_columns(probs, count)[filled],
        params=np.array(how, dtype=np.float64)[layout.request_index[filled]],
    )


def self_conditioning_rows(batch: list[ScheduledRequest], offsets: list[int]) -> SelfConditioningRows | None:
    """Returns the blocks with self-conditioning after their first step; None if there are none."""
    rows: list[int] = []
    req_slot: list[int] = []
    for scheduled, offset in zip(batch, offsets, strict=True):
        if scheduled.request.required_stats & LogitStat.SELF_CONDITIONING:
            for block in scheduled.blocks:
                if block.num_steps_forcing:
                    rows.append(block.logits_start + offset)
                    req_slot.append(scheduled.request.req_slot)
    return SelfConditioningRows(np.array(rows), np.array(req_slot)) if rows else None


def _pad_columns(parts: list[np.ndarray], count: int) -> np.ndarray:
    """Concatenates the parts to [rows, count]; narrower ones are padded with zeros."""
    return np.concatenate(
        [part if part.shape[1] == count else np.pad(part, ((0, 0), (0, count - part.shape[1]))) for part in parts]
    )
