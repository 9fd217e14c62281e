"""Where attention's keys are split among programs: what each made of its share, put together."""

from __future__ import annotations

import torch

from runtime.kernels.heads import heads_together
from runtime.kernels.triton_import import tl, triton


@triton.jit(do_not_specialize=["all_rows"])
def _put_together(
    shares_ptr, sums_ptr, out_ptr, all_rows,
    HEADS: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr,
    HEADS_P2: tl.constexpr, DIM_P2: tl.constexpr,
):  # fmt: skip
    """One program: HEADS_P2 heads of a row, from their shares in the order of the keys."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS_P2 + tl.arange(0, HEADS_P2)
    dim = tl.arange(0, DIM_P2)
    head_ok = head < HEADS
    ok = head_ok[:, None] & (dim < DIM)[None, :]
    each = all_rows.to(tl.int64) * HEADS
    best = tl.full([HEADS_P2], float("-inf"), tl.float32)
    for split in tl.static_range(SPLITS):
        best = tl.maximum(best, tl.load(sums_ptr + split * each + row * HEADS + head, mask=head_ok, other=0.0))
    anchor = tl.where(best == float("-inf"), 0.0, best)
    total = tl.zeros([HEADS_P2], tl.float32)
    acc = tl.zeros([HEADS_P2, DIM_P2], tl.float32)
    at = (row * HEADS + head)[:, None] * DIM + dim[None, :]
    for split in tl.static_range(SPLITS):
        sums_at = sums_ptr + split * each + row * HEADS + head
        score = tl.load(sums_at, mask=head_ok, other=float("-inf"))
        decay = tl.exp2(score - anchor)
        total += decay * tl.load(sums_at + SPLITS * each, mask=head_ok, other=0.0)
        seen = ok & (score > float("-inf"))[:, None]
        acc += decay[:, None] * tl.load(shares_ptr + split * each * DIM + at, mask=seen, other=0.0)
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty), mask=ok)


def put_together(shared: torch.Tensor, sums: torch.Tensor, out: torch.Tensor) -> None:
    """shared [shares, rows, heads, dim] and sums [2, shares, rows, heads], as attention leaves them, into out [rows,
    heads, dim]."""
    splits, rows, heads, dim = shared.shape
    together = heads_together(heads, dim)
    _put_together[(rows, triton.cdiv(heads, together))](
        shared, sums, out, rows, HEADS=heads, DIM=dim, SPLITS=splits, HEADS_P2=together,
        DIM_P2=max(16, triton.next_power_of_2(dim)), num_warps=4,
    )  # fmt: skip
