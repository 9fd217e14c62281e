"""Compares two-pass attention with its reference. The interpreter and the GPU suite share these checks."""

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

# Smallest configs: KV tiles with one and with several tiles of weights; queries loaded at once, and in parts.
SMALL = [
    (ScoresConfig(16, 32, 16, 4, 2), ValuesConfig(16, 32, 4, 2)),
    (ScoresConfig(64, 32, 512, 4, 2), ValuesConfig(16, 16, 4, 2)),
    (ScoresConfig(32, 64, 16, 4, 2), ValuesConfig(512, 16, 4, 2)),
]


def committing(batch: ForwardBatch, committed: list[int]) -> ForwardBatch:
    """Returns the batch with `committed` causal rows at the start of each request; its other rows see all keys."""
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
    """Compares `two_pass_attention` with its reference. Unwritten K/V and the queries of padding rows are NaN.

    Args:
        runs: (cached rows, new rows) of each sequence.
        committed: Argument of `committing`. None: arbitrary visible ends, padding rows and an empty query tile.
    """
    q, k, v, batch = attention_case(runs, heads, kv_heads, dim, 1, page_size, dtype, device, layout=layout)
    rows = len(q)
    if committed is None:
        batch = with_any_sight(batch, [cached + new for cached, new in runs])
        q = torch.cat([q, torch.full_like(q[:2], float("nan"))])
    else:
        batch = committing(batch, committed)
    batch = replace(batch, max_seq_len=1)  # must not bound the visible keys
    expected = paged_attention_reference(q.double(), k.double(), v.double(), batch, scale=dim**-0.5)
    out = two_pass_attention(q, k, v, batch, scale=dim**-0.5, scores_config=scores_config, values_config=values_config)
    assert_near(out[:rows], expected[:rows], dtype)
