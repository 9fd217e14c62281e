"""Split-KV: merge of the partial results of the splits (flash-decoding)."""

from __future__ import annotations

import torch

from runtime.kernels.heads import heads_per_program
from runtime.kernels.triton_import import tl, triton


@triton.jit(do_not_specialize=["all_rows"])
def _merge_split_kv(
    partial_ptr, stats_ptr, out_ptr, all_rows,
    HEADS: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr,
    HEADS_P2: tl.constexpr, DIM_P2: tl.constexpr,
):  # fmt: skip
    """One program: HEADS_P2 heads of a row, over the splits in ascending order of keys."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS_P2 + tl.arange(0, HEADS_P2)
    dim = tl.arange(0, DIM_P2)
    head_ok = head < HEADS
    ok = head_ok[:, None] & (dim < DIM)[None, :]
    split_stride = all_rows.to(tl.int64) * HEADS
    m_i = tl.full([HEADS_P2], float("-inf"), tl.float32)
    for split in tl.static_range(SPLITS):
        m_i = tl.maximum(m_i, tl.load(stats_ptr + split * split_stride + row * HEADS + head, mask=head_ok, other=0.0))
    anchor = tl.where(m_i == float("-inf"), 0.0, m_i)
    l_i = tl.zeros([HEADS_P2], tl.float32)
    acc = tl.zeros([HEADS_P2, DIM_P2], tl.float32)
    at = (row * HEADS + head)[:, None] * DIM + dim[None, :]
    for split in tl.static_range(SPLITS):
        stats_at = stats_ptr + split * split_stride + row * HEADS + head
        score = tl.load(stats_at, mask=head_ok, other=float("-inf"))
        alpha = tl.exp2(score - anchor)
        l_i += alpha * tl.load(stats_at + SPLITS * split_stride, mask=head_ok, other=0.0)
        seen = ok & (score > float("-inf"))[:, None]
        acc += alpha[:, None] * tl.load(partial_ptr + split * split_stride * DIM + at, mask=seen, other=0.0)
    acc = acc / tl.where(l_i == 0.0, 1.0, l_i)[:, None]
    tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=ok)


def merge_split_kv(partials: torch.Tensor, stats: torch.Tensor, out: torch.Tensor) -> None:
    """Merges partial results into `out` [rows, heads, dim].

    Args:
        partials: [splits, rows, heads, dim], unnormalized. stats: [2, splits, rows, heads], maxima and sums of weights.
    """
    splits, rows, heads, dim = partials.shape
    heads_p2 = heads_per_program(heads, dim)
    _merge_split_kv[(rows, triton.cdiv(heads, heads_p2))](
        partials, stats, out, rows, HEADS=heads, DIM=dim, SPLITS=splits, HEADS_P2=heads_p2,
        DIM_P2=max(16, triton.next_power_of_2(dim)), num_warps=4,
    )  # fmt: skip
