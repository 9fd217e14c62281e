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


def test_the_bias_selects_experts_without_changing_weights():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]], dtype=torch.float64)
    bias = torch.tensor([0.0, 0.0, 0.0, 5.0], dtype=torch.float64)
    ids, weights = select_experts_reference(logits, bias, RoutingConfig(2, 1, 1, False, 3.0))
    assert ids.tolist() == [[3, 0]]
    torch.testing.assert_close(weights, logits.sigmoid()[:, [3, 0]] * 3.0)
    _, normalised = select_experts_reference(logits, bias, RoutingConfig(2, 1, 1, True, 3.0))
    torch.testing.assert_close(normalised.sum(), torch.tensor(3.0, dtype=torch.float64))


def test_a_shared_expert_is_chosen_last_by_every_row():
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]], dtype=torch.float64)
    rule = RoutingConfig(2, 1, 1, True, 2.5)
    ids, weights = select_experts_reference(logits, None, rule)
    more_ids, more = select_experts_reference(logits, None, replace(rule, fused_shared_expert=True))
    assert torch.equal(more_ids[:, :2], ids)
    assert torch.equal(more[:, :2], weights)
    assert more_ids[:, 2].tolist() == [3, 3]
    assert more[:, 2].tolist() == [1.0, 1.0]


def test_a_block_has_one_pool_of_experts():
    """Compares three rows of a block, and one row of another block, with results computed by hand."""
    logits = torch.tensor(
        [[5.0, 1.0, 0.0, 2.0], [0.0, 4.0, 1.0, 3.9], [0.5, 0.0, 3.0, 1.0], [0.0, 0.0, 3.0, 1.0]], dtype=torch.float64
    )
    rule = RoutingConfig(1, 1, 1, False, 1.0, capacity=2, block=3)
    ids, weights = select_experts_reference(logits, None, rule, torch.tensor([0, 0, 0, 3]))
    assert ids.tolist() == [[0], [1], [0], [2]], "the third row's own best, expert 2, is not in the pool of 0 and 1"
    torch.testing.assert_close(weights[2], logits.sigmoid()[2, :1])
    bias = torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    ids, weights = select_experts_reference(logits, bias, rule, torch.tensor([0, 0, 0, 3]))
    assert ids[2].tolist() == [2]
    torch.testing.assert_close(weights[2], logits.sigmoid()[2, 2:3])


def test_ties_in_a_pool_select_the_lower_expert():
    logits = torch.zeros(2, 6, dtype=torch.float64)
    logits[1, 5] = 1.0
    rule = RoutingConfig(3, 1, 1, False, 1.0, capacity=3, block=2)
    ids, _ = select_experts_reference(logits, None, rule, torch.tensor([0, 0]))
    assert [sorted(row) for row in ids.tolist()] == [[0, 1, 5], [0, 1, 5]]


def test_a_bias_may_change_weights():
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]], dtype=torch.float64)
    bias = torch.tensor([0.9, 0.0, 0.0, -0.2], dtype=torch.float64)
    ids, weights = select_experts_reference(
        logits, bias, RoutingConfig(2, 1, 1, False, 1.0, "softmax", bias_in_weights=True)
    )
    assert ids.tolist() == [[0, 1]]
    total = sum(math.exp(x) for x in range(4))
    torch.testing.assert_close(weights[0], torch.tensor([1 / total + 0.9, math.exp(3) / total], dtype=torch.float64))


@pytest.mark.parametrize("normalise", [False, True])
def test_softmax_scores_are_normalized_over_all_experts(normalise):
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]], dtype=torch.float64)
    ids, weights = select_experts_reference(logits, None, RoutingConfig(2, 1, 1, normalise, 1.0, "softmax"))
    assert ids.tolist() == [[1, 3]]
    exponentials = torch.tensor([math.exp(3), math.exp(2)], dtype=torch.float64)
    total = exponentials.sum() if normalise else sum(math.exp(x) for x in range(4))
    torch.testing.assert_close(weights[0], exponentials / total)


def test_groups_are_ranked_by_their_two_best():
    # Group 0 has the best expert, group 1 the better pair.
    logits = torch.tensor([[4.0, -9.0, 1.0, 1.0]])
    ids, _ = select_experts_reference(logits, None, RoutingConfig(2, 2, 1, True, 1.0))
    assert sorted(ids[0].tolist()) == [2, 3]
    ids, _ = select_experts_reference(logits, None, RoutingConfig(2, 2, 2, True, 1.0))
    assert 0 in ids[0].tolist()


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
