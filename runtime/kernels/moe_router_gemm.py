"""The router's scores: rows times float32 weights, on matrix units that have no float32.

A float32 number is exactly the sum of three of bfloat16. Products of these are exact too, so that what is left is the
sums' rounding: the matrix unit's own accumulator loses some bits at every step, so it is begun anew every DEPTH
numbers, and what it held is added up in float32. Rows of float32 are three parts each as well; of the nine products the
three least, which are below its rounding, are left out. Of rows that a norm makes of narrow ones these are taken, a
third of the products, and the scores are multiplied by the norm's factors.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from runtime.kernels.batch_invariant_gemm import product
from runtime.kernels.triton_import import tl, triton

PARTS = 3
TAKEN = 64  # experts of a program: the rows that the matrix unit takes;
MANY = 4096  # rows, from which on it is twice as many
DEPTH = 64
PROGRAMS = 256  # that the depth is split for: more shares are more to add up
MOST_SPLITS = 8
FIXED_SPLITS = 4  # whatever the number of rows


def split_parts(weight: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """float32 [experts, inputs] -> [PARTS, experts, inputs] of `dtype` that sum up to it, the largest first."""
    parts = []
    for _ in range(PARTS):
        parts.append(weight.to(dtype))
        weight = weight - parts[-1].to(weight.dtype)
    return torch.stack(parts)


def router_logits_reference(x: torch.Tensor, weight: torch.Tensor, factor: torch.Tensor | None = None) -> torch.Tensor:
    """[rows, inputs] times [experts, inputs]^T in the weight's dtype, which is wide -> [rows, experts]; times `factor`
    [rows] of that dtype, where one is given."""
    return scaled(F.linear(x.to(weight.dtype), weight), factor)


def scaled(logits: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor:
    return logits if factor is None else logits * factor[:, None]


@triton.jit(do_not_specialize=["rows"])
def _router(
    x_ptr, parts_ptr, factor_ptr, out_ptr, rows,
    EXPERTS: tl.constexpr, INPUTS: tl.constexpr, SHARE: tl.constexpr, ROWS: tl.constexpr, TAKEN: tl.constexpr,
    DEPTH: tl.constexpr, WIDE: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """One program: TAKEN experts of ROWS rows, over SHARE of the inputs; to [shares, rows, experts]. WIDE: rows are of
    float32. SCALED: scores are multiplied by their rows' factors."""
    expert = tl.program_id(0) * TAKEN + tl.arange(0, TAKEN)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(2)
    depth = tl.arange(0, DEPTH)
    ok, expert_ok = row < rows, expert < EXPERTS
    x_at = x_ptr + row.to(tl.int64)[:, None] * INPUTS + depth[None, :]
    part_at = parts_ptr + expert[:, None] * INPUTS + depth[None, :]
    acc = tl.zeros([TAKEN, ROWS], tl.float32)
    for step in range(0, SHARE, DEPTH):
        start = split * SHARE + step
        inside = (start + depth < INPUTS)[None, :]
        x = tl.trans(tl.load(x_at + start, mask=ok[:, None] & inside, other=0.0))
        weight_ok = expert_ok[:, None] & inside
        low = tl.load(part_at + 2 * EXPERTS * INPUTS + start, mask=weight_ok, other=0.0)
        middle = tl.load(part_at + EXPERTS * INPUTS + start, mask=weight_ok, other=0.0)
        high = tl.load(part_at + start, mask=weight_ok, other=0.0)
        if WIDE:
            first = x.to(high.dtype)
            x -= first.to(tl.float32)
            second = x.to(high.dtype)
            x -= second.to(tl.float32)
            fresh = tl.dot(high, x.to(high.dtype), out_dtype=tl.float32)
            fresh = tl.dot(middle, second, fresh)
            fresh = tl.dot(low, first, fresh)
            fresh = tl.dot(high, second, fresh)
        else:
            first = x
            fresh = tl.dot(low, first, out_dtype=tl.float32)
        fresh = tl.dot(middle, first, fresh)
        acc += tl.dot(high, first, fresh)
    if SCALED:
        acc *= tl.load(factor_ptr + row, mask=ok, other=0.0)[None, :]
    at = out_ptr + (split * rows + row).to(tl.int64)[None, :] * EXPERTS + expert[:, None]
    tl.store(at, acc, mask=expert_ok[:, None] & ok[None, :])


def router_logits(
    x: torch.Tensor, weight: torch.Tensor, factor: torch.Tensor | None = None, *, fixed: bool = False
) -> torch.Tensor:
    """`router_logits_reference` on a GPU, for a float32 weight, or for its parts (`split_parts`) and rows of their
    dtype or of float32: then as [shares, rows, experts], whose sum it is. `fixed`: bits do not depend on the number of
    rows."""
    if weight.dim() == 2:
        if fixed:
            return scaled(product(x.to(weight.dtype), weight), factor)
        return router_logits_reference(x, weight, factor)
    (rows, inputs), experts = x.shape, weight.shape[1]
    taken, lines, share = cut(rows, inputs, experts, fixed=fixed)
    splits = triton.cdiv(inputs, share)
    out = x.new_empty(splits, rows, experts, dtype=torch.float32)
    wide = x.dtype != weight.dtype
    _router[(triton.cdiv(experts, taken), triton.cdiv(rows, lines), splits)](
        x, weight, out if factor is None else factor, out, rows, EXPERTS=experts, INPUTS=inputs, SHARE=share,
        ROWS=lines, TAKEN=taken, DEPTH=DEPTH, WIDE=wide, SCALED=factor is not None, num_warps=4 * taken // TAKEN,
        num_stages=2 if wide else 3,
    )  # fmt: skip
    return out


def cut(rows: int, inputs: int, experts: int, *, fixed: bool = False) -> tuple[int, int, int]:
    """(experts of a program, rows of one, inputs of a share): the scores' bits depend on the share."""
    taken, lines = (2 * TAKEN, 128) if rows >= MANY else (TAKEN, min(64, max(16, triton.next_power_of_2(rows))))
    programs = triton.cdiv(experts, TAKEN) * triton.cdiv(rows, lines)
    splits = FIXED_SPLITS if fixed else max(1, min(MOST_SPLITS, PROGRAMS // programs))
    return taken, lines, triton.cdiv(triton.cdiv(inputs, DEPTH), splits) * DEPTH
