"""The experts of a mixture: each row through its chosen gated layers, weighted and summed."""

from __future__ import annotations

import torch

from runtime.kernels.expert_sort import sort_by_expert
from runtime.kernels.gate import Activation, gate_mul_reference, gated
from runtime.kernels.precision import wide
from runtime.kernels.triton_import import tl, triton

# Rows of one batched product, padding included, for each row that is real: beyond it, expert after expert is faster,
# unless there are so few that the number of calls is what counts.
PADDING_LIMIT = 2
FEW_ROWS = 512


def moe_reference(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    shared: torch.Tensor | None,
    activation: Activation = "silu",
) -> torch.Tensor:
    """``shared[t] + sum_j weights[t, j] * expert[ids[t, j]](x[t])``, summed wide.

    Args:
        x: [rows, hidden]; ids: int32 [rows, top_k], -1: nobody's, which adds nothing; weights: float [rows, top_k].
        gate_up: [experts, 2 * width, hidden], gate rows first; down: [experts, hidden, width].
        shared: [rows, hidden] to add, or None. activation: of the gates.

    Returns:
        [rows, hidden] in x's dtype.
    """
    up = wide(x.dtype)
    total = torch.zeros_like(x, dtype=up) if shared is None else shared.to(up).clone()
    for expert in range(len(gate_up)):
        row, choice = (ids == expert).nonzero(as_tuple=True)
        hidden = gate_mul_reference(x[row] @ gate_up[expert].t(), activation)
        total.index_add_(0, row, weights[row, choice, None].to(up) * (hidden @ down[expert].t()).to(up))
    return total.to(x.dtype)


def moe_torch(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    shared: torch.Tensor | None,
    activation: Activation = "silu",
) -> torch.Tensor:
    """`moe_reference` with few calls, for CPUs: rows in the order of their experts, and those batched where they are
    few. A row's result depends on the other rows by rounding alone."""
    rows, top_k = ids.shape
    experts = gate_up.shape[0]
    flat = ids.flatten().long()
    dead, counts = torch.bincount(flat + 1, minlength=experts + 1).split([1, experts])
    order = flat.argsort(stable=True)[int(dead) :]  # pairs (row, choice) grouped by expert
    inputs = x[order // top_k]
    if experts * int(counts.max()) <= max(PADDING_LIMIT * len(flat), FEW_ROWS):
        outputs = _batched(inputs, flat[order], counts, gate_up, down, activation)
    else:
        outputs = _one_by_one(inputs, counts.tolist(), gate_up, down, activation)
    up = wide(x.dtype)
    by_choice = outputs.new_zeros(rows * top_k, outputs.shape[1]).index_copy_(0, order, outputs)
    by_choice = by_choice.unflatten(0, (rows, top_k)).to(up)
    total = torch.zeros_like(x, dtype=up) if shared is None else shared.to(up)
    for choice, weight in enumerate(weights.to(up).split(1, dim=1)):
        total = torch.addcmul(total, weight, by_choice[:, choice])
    return total.to(x.dtype)


def _batched(
    inputs: torch.Tensor,
    experts: torch.Tensor,
    counts: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activation: Activation,
) -> torch.Tensor:
    """All experts in one batched product, each padded to the fullest: few calls, for few rows."""
    starts = counts.cumsum(0) - counts
    place = experts * int(counts.max()) + torch.arange(len(inputs), device=inputs.device) - starts[experts]
    padded = inputs.new_zeros(len(counts) * int(counts.max()), inputs.shape[1])
    padded[place] = inputs
    hidden = gate_mul_reference(torch.bmm(padded.unflatten(0, (len(counts), -1)), gate_up.transpose(1, 2)), activation)
    return torch.bmm(hidden, down.transpose(1, 2)).flatten(0, 1)[place]


def _one_by_one(
    inputs: torch.Tensor, counts: list[int], gate_up: torch.Tensor, down: torch.Tensor, activation: Activation
) -> torch.Tensor:
    """Expert after expert, no padding: for many rows, or rows that crowd at few experts."""
    hidden = inputs.new_empty(len(inputs), gate_up.shape[1])
    outputs = torch.empty_like(inputs)
    for expert, (source, target) in enumerate(zip(inputs.split(counts), hidden.split(counts), strict=True)):
        if len(source):
            torch.mm(source, gate_up[expert].t(), out=target)
    activated = gate_mul_reference(hidden, activation)
    for expert, (source, target) in enumerate(zip(activated.split(counts), outputs.split(counts), strict=True)):
        if len(source):
            torch.mm(source, down[expert].t(), out=target)
    return outputs


@triton.jit(do_not_specialize=["most"])  # else each new value may compile again
def _gate_up(
    x_ptr, weight_ptr, hidden_ptr, order_ptr, tiles_ptr, most,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    """One program: a tile of one expert's pairs times COLUMNS of its width; stores act(gate) * up in expert order."""
    tile = tl.program_id(1)
    expert = tl.load(tiles_ptr + tile)
    if expert < 0:
        return
    place = tl.load(tiles_ptr + most + tile) + tl.arange(0, ROWS)
    ok = place < tl.load(tiles_ptr + 2 * most + tile)
    row = tl.load(order_ptr + place, mask=ok, other=0) // TOP_K
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    column_ok = column < WIDTH
    depth = tl.arange(0, DEPTH)
    x_at = x_ptr + row.to(tl.int64)[:, None] * HIDDEN + depth[None, :]
    gate_at = weight_ptr + expert.to(tl.int64) * 2 * WIDTH * HIDDEN + column[None, :] * HIDDEN + depth[:, None]
    up_at = gate_at + WIDTH * HIDDEN
    gate = tl.zeros([ROWS, COLUMNS], tl.float32)
    up = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, HIDDEN, DEPTH):
        inside = first + depth < HIDDEN
        x = tl.load(x_at + first, mask=ok[:, None] & inside[None, :], other=0.0)
        weight_ok = inside[:, None] & column_ok[None, :]
        gate = tl.dot(x, tl.load(gate_at + first, mask=weight_ok, other=0.0), gate, input_precision="ieee")
        up = tl.dot(x, tl.load(up_at + first, mask=weight_ok, other=0.0), up, input_precision="ieee")
    value = gated(gate, up, GELU)
    at = hidden_ptr + place.to(tl.int64)[:, None] * WIDTH + column[None, :]
    tl.store(at, value.to(hidden_ptr.dtype.element_ty), mask=ok[:, None] & column_ok[None, :])


@triton.jit(do_not_specialize=["most"])
def _down(
    hidden_ptr, weight_ptr, pairs_ptr, order_ptr, tiles_ptr, most,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """One program: a tile of one expert's pairs times COLUMNS of the model's width; stores by pair index."""
    tile = tl.program_id(1)
    expert = tl.load(tiles_ptr + tile)
    if expert < 0:
        return
    place = tl.load(tiles_ptr + most + tile) + tl.arange(0, ROWS)
    ok = place < tl.load(tiles_ptr + 2 * most + tile)
    pair = tl.load(order_ptr + place, mask=ok, other=0)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    column_ok = column < HIDDEN
    depth = tl.arange(0, DEPTH)
    h_at = hidden_ptr + place.to(tl.int64)[:, None] * WIDTH + depth[None, :]
    weight_at = weight_ptr + expert.to(tl.int64) * HIDDEN * WIDTH + column[None, :] * WIDTH + depth[:, None]
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, WIDTH, DEPTH):
        inside = first + depth < WIDTH
        h = tl.load(h_at + first, mask=ok[:, None] & inside[None, :], other=0.0)
        weight = tl.load(weight_at + first, mask=inside[:, None] & column_ok[None, :], other=0.0)
        acc = tl.dot(h, weight, acc, input_precision="ieee")
    at = pairs_ptr + pair.to(tl.int64)[:, None] * HIDDEN + column[None, :]
    tl.store(at, acc.to(pairs_ptr.dtype.element_ty), mask=ok[:, None] & column_ok[None, :])


@triton.jit
def _combine(
    pairs_ptr, ids_ptr, weights_ptr, shared_ptr, out_ptr,
    TOP_K: tl.constexpr, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """One program: COLUMNS of one row, its choices summed in the order of their rank."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    ok = column < HIDDEN
    acc = tl.zeros([COLUMNS], tl.float32)
    for choice in tl.static_range(TOP_K):
        alive = tl.load(ids_ptr + row * TOP_K + choice) >= 0  # nothing was stored for a dead one
        value = tl.load(pairs_ptr + (row * TOP_K + choice) * HIDDEN + column, mask=ok & alive, other=0.0)
        acc += tl.load(weights_ptr + row * TOP_K + choice) * value.to(tl.float32)
    if SHARED:
        acc += tl.load(shared_ptr + row * HIDDEN + column, mask=ok, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * HIDDEN + column, acc.to(out_ptr.dtype.element_ty), mask=ok)


def moe(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    shared: torch.Tensor | None,
    activation: Activation = "silu",
) -> torch.Tensor:
    """`moe_reference` on a GPU for contiguous tensors, float32 weights; no host synchronisation, deterministic."""
    (batch, hidden), top_k = x.shape, ids.shape[1]
    experts, width = gate_up.shape[0], down.shape[2]
    rows, columns, depth, warps, stages = tile_sizes(ids.numel() / experts, x.element_size(), min(hidden, width))
    plan = sort_by_expert(ids, experts, rows)
    most = plan.tiles.shape[1]
    inner = x.new_empty(ids.numel(), width)
    pairs = x.new_empty(ids.numel(), hidden)
    _gate_up[(triton.cdiv(width, columns), most)](
        x, gate_up, inner, plan.order, plan.tiles, most, TOP_K=top_k, HIDDEN=hidden, WIDTH=width,
        ROWS=rows, COLUMNS=columns, DEPTH=depth, GELU=activation == "gelu_tanh", num_warps=warps, num_stages=stages,
    )  # fmt: skip
    _down[(triton.cdiv(hidden, columns), most)](
        inner, down, pairs, plan.order, plan.tiles, most, HIDDEN=hidden, WIDTH=width,
        ROWS=rows, COLUMNS=columns, DEPTH=depth, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    out = torch.empty_like(x)
    slab = min(1024, triton.next_power_of_2(hidden))
    _combine[(batch, triton.cdiv(hidden, slab))](
        pairs, ids, weights, x if shared is None else shared, out, TOP_K=top_k, HIDDEN=hidden, COLUMNS=slab,
        SHARED=shared is not None, num_warps=4,
    )  # fmt: skip
    return out


def tile_sizes(pairs_per_expert: float, element_size: int, smallest: int) -> tuple[int, int, int, int, int]:
    """(rows, columns, depth, warps, stages) of the two products' tiles.

    Few pairs an expert: the time is the weights' bytes, so tiles are low, deep and much in flight. Many: tiles near
    square for the matrix units. Depth and columns shrink with the matrix, for small models.
    """
    if pairs_per_expert <= 16:
        rows, columns, depth, warps, stages = 16, 64, 128, 4, 4
    elif pairs_per_expert <= 48:
        rows, columns, depth, warps, stages = 32, 64, 128, 4, 4
    elif pairs_per_expert <= 128:
        rows, columns, depth, warps, stages = 64, 64, 64, 4, 4
    else:
        rows, columns, depth, warps, stages = 128, 64, 64, 8, 4
    if element_size == 4:
        rows, depth, warps, stages = min(rows, 32), 32, 4, 2  # no matrix unit of full precision: keep within registers
    floor = max(16, triton.next_power_of_2(smallest))
    return rows, min(columns, floor), min(depth, floor), warps, stages
