"""The oracle's forward against the golden logits, and against itself written another way."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.golden import GOLDEN
from tests.oracle.model import OracleModel, block_causal, rotate
from tests.oracle.tiny import ARCHITECTURES, tiny_config, tiny_tensors, write_tiny


@pytest.fixture(params=sorted(ARCHITECTURES))
def model(request: pytest.FixtureRequest) -> OracleModel:
    config = tiny_config(**ARCHITECTURES[request.param])
    return OracleModel(config, tiny_tensors(config, seed=3))


def test_golden_logits() -> None:
    directory = GOLDEN / "llada2_tiny"
    expected = load_file(directory / "expected.safetensors")
    logits = OracleModel.load(directory).logits(expected["input_ids"][0].tolist())
    torch.testing.assert_close(logits, expected["logits"][0].double(), atol=5e-6, rtol=1e-5)


def test_golden_tells_a_wrong_mask() -> None:
    """The golden comparison has teeth: another block size or plain causality is far off."""
    directory = GOLDEN / "llada2_tiny"
    expected = load_file(directory / "expected.safetensors")
    for block in (1, 4, 32):
        logits = OracleModel.load(directory, block=block).logits(expected["input_ids"][0].tolist())
        assert (logits - expected["logits"][0]).abs().max() > 0.01


def test_mask_by_its_definition() -> None:
    expected = [[k // 3 <= a // 3 for k in range(8)] for a in range(8)]
    assert block_causal(8, 3).tolist() == expected


def test_later_blocks_do_not_reach_back(model: OracleModel) -> None:
    """What makes a full recompute equal a cache: the blocks up to one fix its logits to the last bit that matters."""
    ids = [random.Random(1).randrange(32) for _ in range(18)]
    whole = model.logits(ids)
    for end in (4, 8, 16):
        torch.testing.assert_close(model.logits(ids[:end]), whole[:end], atol=1e-12, rtol=1e-12)
        changed = [*ids[:end], *((t + 1) % 32 for t in ids[end:])]
        torch.testing.assert_close(model.logits(changed)[:end], whole[:end], atol=1e-12, rtol=1e-12)


def test_inside_a_block_sees_both_ways(model: OracleModel) -> None:
    ids = list(range(1, 9))
    other = [*ids[:7], 20]
    assert (model.logits(ids)[4] - model.logits(other)[4]).abs().max() > 1e-6


def test_rotary_is_relative_and_partial() -> None:
    q, k = torch.randn(1, 1, 8, dtype=torch.float64), torch.randn(1, 1, 8, dtype=torch.float64)

    def score(a: int, b: int) -> float:
        return float((rotate(q, torch.tensor([a]), 4, 100.0) * rotate(k, torch.tensor([b]), 4, 100.0)).sum())

    assert score(3, 1) == pytest.approx(score(12, 10))
    assert score(3, 1) != pytest.approx(score(3, 2))
    assert torch.equal(rotate(q, torch.tensor([5]), 4, 100.0)[..., 4:], q[..., 4:])
    # one pair of dimensions by hand: (x, y) at angle position * 1
    two = torch.tensor([[[1.0, 2.0]]], dtype=torch.float64)
    turned = rotate(two, torch.tensor([2]), 2, 100.0)[0, 0]
    c, s = torch.cos(torch.tensor(2.0, dtype=torch.float64)), torch.sin(torch.tensor(2.0, dtype=torch.float64))
    torch.testing.assert_close(turned, torch.stack([c - 2 * s, 2 * c + s]))


def test_routing_written_with_tensors() -> None:
    """Group-limited routing again, with scatter and topk, on many random tokens."""
    config = tiny_config(num_experts=12, n_group=4, topk_group=2, num_experts_per_tok=3)
    model = OracleModel(config, tiny_tensors(config, seed=5))
    x = torch.randn(200, config["hidden_size"], dtype=torch.float64)
    name = "model.layers.1.mlp."
    scores = torch.sigmoid(x @ model.w[name + "gate.weight"].T)
    rank = scores + model.w[name + "gate.expert_bias"]
    groups = rank.view(200, 4, 3).topk(2, dim=-1).values.sum(-1).topk(2, dim=-1).indices
    hidden = torch.ones(200, 4, dtype=torch.bool).scatter(1, groups, False).repeat_interleave(3, dim=1)
    chosen = rank.masked_fill(hidden, -torch.inf).topk(3, dim=-1).indices
    weights = scores.gather(1, chosen)
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * config["routed_scaling_factor"]
    expected = torch.zeros_like(scores).scatter(1, chosen, weights)
    torch.testing.assert_close(model.route(name, x), expected)


def test_reads_a_directory(tmp_path: Path) -> None:
    config = write_tiny(tmp_path, seed=9)
    torch.testing.assert_close(
        OracleModel.load(tmp_path).logits([1, 2, 3]), OracleModel(config, tiny_tensors(config, 9)).logits([1, 2, 3])
    )
