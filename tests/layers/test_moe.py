"""Tests of the torch experts and routing against Python loops, with few, many and unevenly routed rows."""

import math
from dataclasses import replace

import pytest
import torch

from runtime.kernels.fused_moe import fused_moe
from runtime.kernels.fused_moe.fused_moe import moe_reference, moe_torch
from runtime.kernels.fused_moe.moe_align import max_num_tiles, moe_align_block_size_reference
from runtime.kernels.moe_router import RoutingConfig, select_experts_reference
from runtime.layers.lm_head import head_logits
from tests.kernels.cases import random_ids


def by_hand(x, ids, weights, gate_up, down, shared):
    out = torch.zeros_like(x) if shared is None else shared.clone()
    for row in range(len(x)):
        for expert, weight in zip(ids[row].tolist(), weights[row], strict=True):
            if expert < 0:
                continue
            gate, up = (gate_up[expert] @ x[row]).chunk(2)
            out[row] += weight * (down[expert] @ (gate / (1 + (-gate).exp()) * up))
    return out


@pytest.mark.parametrize("dead", [0, 0.4, 1])
@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("few_rows", [0, 512])
@pytest.mark.parametrize(("rows", "experts", "top_k"), [(1, 4, 1), (3, 8, 2), (64, 6, 3), (50, 16, 2)])
def test_moe(monkeypatch, rows, experts, top_k, few_rows, crowded, dead):
    monkeypatch.setattr(fused_moe, "FEW_ROWS", few_rows)  # 0: a loop over experts if padding would be large
    random = torch.Generator().manual_seed(rows)
    x, shared = torch.randn(2, rows, 12, generator=random, dtype=torch.float64)
    gate_up = torch.randn(experts, 20, 12, generator=random, dtype=torch.float64)
    down = torch.randn(experts, 12, 10, generator=random, dtype=torch.float64)
    weights = torch.rand(rows, top_k, generator=random, dtype=torch.float64)
    ids = random_ids(rows, experts, top_k, "cpu", crowded, dead)
    for extra in (None, shared):
        expected = by_hand(x, ids, weights, gate_up, down, extra)
        for experts_of in (moe_reference, moe_torch):
            out = experts_of(x, ids, weights, gate_up, down, extra)
            torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)


def test_both_ways_of_running_experts_are_used(monkeypatch):
    used = []
    for name in ("_batched", "grouped_gemm"):
        real = getattr(fused_moe, name)
        monkeypatch.setattr(fused_moe, name, lambda *a, real=real, name=name: used.append(name) or real(*a))
    x = torch.randn(900, 8)
    gate_up, down, weights = torch.randn(8, 12, 8), torch.randn(8, 8, 6), torch.rand(900, 1)
    even, crowded = torch.arange(900).remainder(8).int()[:, None], torch.zeros(900, 1, dtype=torch.int32)
    moe_torch(x, even, weights, gate_up, down, None)
    moe_torch(x, crowded, weights, gate_up, down, None)
    moe_torch(x[:3], crowded[:3], weights[:3], gate_up, down, None)
    assert used == ["_batched", "grouped_gemm", "grouped_gemm", "_batched"]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


EXP = [math.exp(x) for x in range(4)]
ODD = [[2.0, 1.0, 0.0, -1.0]], [0.0, 0.0, 0.0, 5.0]
RISING = [[0.0, 3.0, 1.0, 2.0]]
ONE_POOL = RoutingConfig(1, 1, 1, False, 1.0, capacity=2, block=3)
# three rows of a block, and one row of another block
POOLED = [[5.0, 1.0, 0.0, 2.0], [0.0, 4.0, 1.0, 3.9], [0.5, 0.0, 3.0, 1.0], [0.0, 0.0, 3.0, 1.0]]
FIRST = [0, 0, 0, 3]
# logits, bias, rule, first row of each row's block; the experts and weights of each row
SELECTED = {
    "a bias selects": (*ODD, RoutingConfig(2, 1, 1, False, 3.0), None, [[3, 0]], [[3 * sigmoid(-1), 3 * sigmoid(2)]]),
    "weights may change by the bias": (
        RISING, [0.9, 0.0, 0.0, -0.2], RoutingConfig(2, 1, 1, False, 1.0, "softmax", bias_in_weights=True), None,
        [[0, 1]], [[EXP[0] / sum(EXP) + 0.9, EXP[3] / sum(EXP)]],
    ),
    "softmax over all experts": (
        RISING, None, RoutingConfig(2, 1, 1, False, 1.0, "softmax"), None, [[1, 3]],
        [[EXP[3] / sum(EXP), EXP[2] / sum(EXP)]],
    ),
    "softmax, normalized": (RISING, None, RoutingConfig(2, 1, 1, True, 1.0, "softmax"), None, [[1, 3]],
                            [[EXP[3] / (EXP[3] + EXP[2]), EXP[2] / (EXP[3] + EXP[2])]]),
    "the third row's own best, expert 2, is not in the pool": (
        POOLED, None, ONE_POOL, FIRST, [[0], [1], [0], [2]], [[sigmoid(x)] for x in (5, 4, 0.5, 3)],
    ),
    "the bias puts expert 2 into the pool": (
        POOLED, [0.0, 0.0, 1.0, 0.0], ONE_POOL, FIRST, [[2]] * 4, [[sigmoid(x)] for x in (0, 1, 3, 3)],
    ),
    "ties in a pool select the lower expert": (
        [[0.0] * 6, [0.0] * 5 + [1.0]], None, RoutingConfig(3, 1, 1, False, 1.0, capacity=3, block=2), [0, 0],
        [[0, 1, 5], [0, 1, 5]], None,
    ),
    "groups are ranked by their two best": (
        [[4.0, -9.0, 1.0, 1.0]], None, RoutingConfig(2, 2, 1, True, 1.0), None, [[2, 3]], None,
    ),
    "both groups": ([[4.0, -9.0, 1.0, 1.0]], None, RoutingConfig(2, 2, 2, True, 1.0), None, [[0, 2]], None),
}  # fmt: skip


@pytest.mark.parametrize("case", SELECTED)
def test_selected_experts(case):
    logits, bias, rule, first, experts, weights = SELECTED[case]
    logits, bias = (None if x is None else torch.tensor(x, dtype=torch.float64) for x in (logits, bias))
    ids, found = select_experts_reference(logits, bias, rule, None if first is None else torch.tensor(first))
    assert [sorted(row) for row in ids.tolist()] == [sorted(row) for row in experts]
    if weights is not None:
        assert ids.tolist() == experts
        torch.testing.assert_close(found, torch.tensor(weights, dtype=torch.float64))


def test_a_shared_expert_is_chosen_last_by_every_row():
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]], dtype=torch.float64)
    rule = RoutingConfig(2, 1, 1, True, 2.5)
    ids, weights = select_experts_reference(logits, None, rule)
    more_ids, more = select_experts_reference(logits, None, replace(rule, fused_shared_expert=True))
    assert torch.equal(more_ids[:, :2], ids)
    assert torch.equal(more[:, :2], weights)
    assert more_ids[:, 2].tolist() == [3, 3]
    assert more[:, 2].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("crowded", [False, True])
def test_expert_tiles_cover_every_pair_once(crowded):
    ids = random_ids(37, 5, 2, "cpu", crowded)
    plan = moe_align_block_size_reference(ids, 5, 16)
    assert plan.tiles.shape[1] == max_num_tiles(74, 5, 16)
    covered = []
    for expert, first, end in plan.tiles.T.tolist():
        if expert >= 0:
            order = plan.order[first : min(first + 16, end)].long()
            assert (ids.flatten()[order] == expert).all()
            covered += order.tolist()
    assert sorted(covered) == list(range(74))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_head_accumulates_wide(dtype):
    random = torch.Generator().manual_seed(1)
    hidden = torch.randn(5, 64, generator=random).to(dtype)
    weight = torch.randn(20000, 64, generator=random).to(dtype)
    out = head_logits(hidden, weight)
    assert out.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(out.double(), hidden.double() @ weight.double().T, rtol=1e-5, atol=1e-4)
