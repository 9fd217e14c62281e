"""Attention in two kernels against its reference: the checks that the interpreter and the GPU suite share."""

from __future__ import annotations

from dataclasses import replace

import torch

from runtime.kernels.forward_batch import ForwardBatch
from runtime.kernels.paged_attention import (
    SCORES_CONFIG,
    VALUES_CONFIG,
    ScoresConfig,
    ValuesConfig,
    paged_attention_reference,
    two_pass_attention,
)
from tests.kernels.cases import assert_near, attention_case, with_any_sight

# as small as they may be: rounds of one box of weights, and of several; queries as a whole, and in parts
SMALL = [
    (ScoresConfig(16, 32, 16, 4, 2), ValuesConfig(16, 32, 4, 2)),
    (ScoresConfig(64, 32, 512, 4, 2), ValuesConfig(16, 16, 4, 2)),
    (ScoresConfig(32, 64, 16, 4, 2), ValuesConfig(512, 16, 4, 2)),
]


def committing(batch: ForwardBatch, committed: list[int]) -> ForwardBatch:
    """Of each request the first rows are `committed`, causal; the others see all of it, as a canvas does."""
    visible_end = batch.visible_end.clone()
    request = torch.repeat_interleave(batch.query_tiles[:, 0].long(), batch.query_tiles[:, 2].long())
    for n, rows in enumerate(committed):
        mine = (request == n).nonzero()[:, 0]
        visible_end[mine] = batch.positions[mine[-1]].int() + 1
        visible_end[mine[:rows]] = batch.positions[mine[:rows]].int() + 1
    return replace(batch, visible_end=visible_end)


def check_in_two(
    runs: list[tuple[int, int]], committed: list[int] | None, heads: int, kv_heads: int, dim: int, page_size: int,
    dtype: torch.dtype, device: str, layout: str, scores_config: ScoresConfig = SCORES_CONFIG,
    values_config: ValuesConfig = VALUES_CONFIG,
) -> None:  # fmt: skip
    """`runs`: (cached, new rows) of each sequence. `committed`: as of `committing`; None: rows that see anything, dead
    ones and a tile of none beside them. K/V that nobody wrote, and the queries of dead rows, are NaN."""
    q, k, v, batch = attention_case(runs, heads, kv_heads, dim, 1, page_size, dtype, device, layout=layout)
    rows = len(q)
    if committed is None:
        batch = with_any_sight(batch, [cached + new for cached, new in runs])
        q = torch.cat([q, torch.full_like(q[:2], float("nan"))])
    else:
        batch = committing(batch, committed)
    batch = replace(batch, max_seq_len=1)  # it tells nothing of what may be seen
    expected = paged_attention_reference(q.double(), k.double(), v.double(), batch, scale=dim**-0.5)
    out = two_pass_attention(q, k, v, batch, scale=dim**-0.5, scores_config=scores_config, values_config=values_config)
    assert_near(out[:rows], expected[:rows], dtype)
