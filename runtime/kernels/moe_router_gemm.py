"""Router GEMM: rows times float32 weights on tensor cores, which have no float32.

A float32 number is exactly the sum of three bfloat16 numbers, and products of bfloat16 numbers are exact in float32.
Only the summation rounds: the tensor core accumulator loses bits per step, so it restarts every DEPTH inputs and is
added up in float32. float32 rows are split into three parts too; the three smallest of the nine products are below the
rounding error and omitted. If a norm computes the rows from bfloat16 ones, the kernel multiplies those, and the scores
are scaled by the factors of the norm.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from runtime.kernels.batch_invariant_gemm import batch_invariant_gemm
from runtime.kernels.triton_import import tl, triton

NUM_PARTS = 3
EXPERTS_PER_PROGRAM = 64  # the rows that tensor cores process at once;
MANY_ROWS = 4096  # from this number of rows, twice as many
DEPTH = 64
TARGET_PROGRAMS = 256  # split-K until there are this many programs; more splits cost more to sum
MAX_SPLITS = 8
BATCH_INVARIANT_SPLITS = 4  # independent of the number of rows


def split_bf16x3(weight: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """float32 [experts, inputs] -> [NUM_PARTS, experts, inputs] of `dtype`, whose sum it is, the largest part first."""
    parts = []
    for _ in range(NUM_PARTS):
        parts.append(weight.to(dtype))
        weight = weight - parts[-1].to(weight.dtype)
    return torch.stack(parts)


def router_logits_reference(x: torch.Tensor, weight: torch.Tensor, factor: torch.Tensor | None = None) -> torch.Tensor:
    """[rows, inputs] times [experts, inputs]^T in the weight's dtype -> [rows, experts], times `factor` [rows] if not
    None.
    """
    return apply_factor(F.linear(x.to(weight.dtype), weight), factor)


def apply_factor(logits: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor:
    return logits if factor is None else logits * factor[:, None]


@triton.jit(do_not_specialize=["rows"])
def _router(
    x_ptr, parts_ptr, factor_ptr, out_ptr, rows,
    EXPERTS: tl.constexpr, INPUTS: tl.constexpr, SPLIT_SIZE: tl.constexpr, ROWS: tl.constexpr,
    EXPERTS_PER_PROGRAM: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """One program: EXPERTS_PER_PROGRAM experts of ROWS rows over SPLIT_SIZE inputs; to [splits, rows, experts].

    WIDE: rows are float32. SCALED: logits are multiplied by the factor of their row.
    """
    expert = tl.program_id(0) * EXPERTS_PER_PROGRAM + tl.arange(0, EXPERTS_PER_PROGRAM)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(2)
    depth = tl.arange(0, DEPTH)
    ok, expert_ok = row < rows, expert < EXPERTS
    x_at = x_ptr + row.to(tl.int64)[:, None] * INPUTS + depth[None, :]
    part_at = parts_ptr + expert[:, None] * INPUTS + depth[None, :]
    acc = tl.zeros([EXPERTS_PER_PROGRAM, ROWS], tl.float32)
    for step in range(0, SPLIT_SIZE, DEPTH):
        start = split * SPLIT_SIZE + step
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
            partial = tl.dot(high, x.to(high.dtype), out_dtype=tl.float32)
            partial = tl.dot(middle, second, partial)
            partial = tl.dot(low, first, partial)
            partial = tl.dot(high, second, partial)
        else:
            first = x
            partial = tl.dot(low, first, out_dtype=tl.float32)
        partial = tl.dot(middle, first, partial)
        acc += tl.dot(high, first, partial)
    if SCALED:
        acc *= tl.load(factor_ptr + row, mask=ok, other=0.0)[None, :]
    at = out_ptr + (split * rows + row).to(tl.int64)[None, :] * EXPERTS + expert[:, None]
    tl.store(at, acc, mask=expert_ok[:, None] & ok[None, :])


def router_logits(
    x: torch.Tensor, weight: torch.Tensor, factor: torch.Tensor | None = None, *, batch_invariant: bool = False
) -> torch.Tensor:
    """`router_logits_reference` on a GPU.

    Args:
        x: [rows, inputs] of the weight's dtype or float32.
        weight: float32 [experts, inputs], or its parts from `split_bf16x3`. With parts, the result has the shape
            [splits, rows, experts] and its sum over the splits is the logits.
        batch_invariant: bits do not depend on the number of rows.
    """
    if weight.dim() == 2:
        if batch_invariant:
            return apply_factor(batch_invariant_gemm(x.to(weight.dtype), weight), factor)
        return router_logits_reference(x, weight, factor)
    (rows, inputs), experts = x.shape, weight.shape[1]
    experts_per_program, row_tile, split_size = select_config(rows, inputs, experts, batch_invariant=batch_invariant)
    splits = triton.cdiv(inputs, split_size)
    out = x.new_empty(splits, rows, experts, dtype=torch.float32)
    wide = x.dtype != weight.dtype
    _router[(triton.cdiv(experts, experts_per_program), triton.cdiv(rows, row_tile), splits)](
        x, weight, out if factor is None else factor, out, rows, EXPERTS=experts, INPUTS=inputs, SPLIT_SIZE=split_size,
        ROWS=row_tile, EXPERTS_PER_PROGRAM=experts_per_program, DEPTH=DEPTH, WIDE=wide, SCALED=factor is not None,
        num_warps=4 * experts_per_program // EXPERTS_PER_PROGRAM, num_stages=2 if wide else 3,
    )  # fmt: skip
    return out


def select_config(rows: int, inputs: int, experts: int, *, batch_invariant: bool = False) -> tuple[int, int, int]:
    """Returns experts per program, rows per program and inputs per split; the bits of the scores depend on the last."""
    experts_per_program, row_tile = (
        (2 * EXPERTS_PER_PROGRAM, 128)
        if rows >= MANY_ROWS
        else (EXPERTS_PER_PROGRAM, min(64, max(16, triton.next_power_of_2(rows))))
    )
    programs = triton.cdiv(experts, EXPERTS_PER_PROGRAM) * triton.cdiv(rows, row_tile)
    splits = BATCH_INVARIANT_SPLITS if batch_invariant else max(1, min(MAX_SPLITS, TARGET_PROGRAMS // programs))
    return experts_per_program, row_tile, triton.cdiv(triton.cdiv(inputs, DEPTH), splits) * DEPTH
