"""Tests of `runtime.bench steps --live` on the CPU with tiny shapes. Each repetition of a step has the same inputs."""

import json
from dataclasses import replace

import pytest
import torch

from runtime.algorithms import logits_ops
from runtime.bench import layers
from runtime.bench.__main__ import main
from runtime.bench.layers import layer_error
from runtime.bench.model_shapes import architecture, random_model
from runtime.bench.step_plans import StepPlans
from runtime.bench.steps import table
from runtime.kernels.layernorm import SandwichNormOps, gemm_add_norm_reference, post_mlp_norms_reference
from runtime.kernels.ops import TORCH, TRITON, KernelSet
from runtime.layers.kv_pool import UnifiedPool
from runtime.layers.layer_factory import LayerFactory
from runtime.scheduling.strategy import DecodingContext
from runtime.strategies.registry import make_strategy
from runtime.worker.candidates import SamplerConfig
from runtime.worker.model_runner import ModelRunner
from tests.bench.test_steps import NOISY, TINY
from tests.golden import GOLDEN

SIZES = ["--batch", "1", "3", "--context", "64", "--prompt", "128", "--budget", "512", "--repeats", "2", "--live"]


def measured(tmp_path, tool, *arguments):
    assert main([tool, *SIZES, *arguments, "--json", str(tmp_path / "steps.json")]) == 0
    return json.loads((tmp_path / "steps.json").read_text())["results"]


@pytest.mark.parametrize("shape", [TINY, NOISY], ids=["masks", "diffusion_gemma"])
def test_live_steps_have_the_same_inputs_each_time(shape, tmp_path, capsys):
    rows = measured(tmp_path, *shape, "--check")
    assert [(row["case"], row["batch"], row["context"]) for row in rows] == [("plain", 1, 64), ("plain", 3, 64)]
    assert all(row["wall_ms"] > 0 and row["experts"] > 1 and row["error"] == 0 for row in rows)
    if shape is TINY:  # about half of the positions are masked in every repetition
        assert all(0.25 < row["sampled"] / row["rows"] < 0.75 for row in rows)
    assert capsys.readouterr().out.endswith(table(rows) + "\n")


def test_requests_may_be_sampled(tmp_path, monkeypatch):
    drawn, multinomial = [], logits_ops.LogitsOps.multinomial
    monkeypatch.setattr(
        logits_ops.LogitsOps,
        "multinomial",
        lambda self, probs, uniform: drawn.append((probs > 0).sum(1)) or multinomial(self, probs, uniform),
    )
    measured(tmp_path, *TINY)
    assert not drawn
    (_, row) = measured(tmp_path, *TINY, "--temperature", "0.7", "--top-p", "0.5")
    assert len(drawn[-1]) == row["sampled"]
    assert all(0 < count < 1000 for count in drawn[-1])
    assert json.loads((tmp_path / "steps.json").read_text())["setup"]["temperature"] == 0.7
    measured(tmp_path, *TINY, "--temperature", "0.7", "--top-p", "0")
    assert drawn[-1].tolist() == [1] * len(drawn[-1])


def test_open_blocks_are_the_same_for_contexts_of_any_length(tmp_path):
    """Otherwise a longer context would also use other experts."""
    rows = measured(tmp_path, *TINY, "--batch", "3", "--context", "64", "96", "160")
    assert [row["context"] for row in rows] == [64, 96, 160]
    assert len({row["sampled"] for row in rows}) == 1


@pytest.mark.matrix
def test_steps_that_commit_or_prefill_next_to_others(tmp_path):
    rows = measured(tmp_path, *TINY, "--cases", "commit", "some", "mixed", "prefill")
    assert [(row["case"], row["batch"], row["rows"]) for row in rows] == [
        ("commit", 1, 64), ("commit", 3, 192), ("some", 1, 64), ("some", 3, 128), ("mixed", 1, 544), ("mixed", 3, 608),
        ("prefill", 4, 512),
    ]  # fmt: skip
    assert [row["sampled"] for row in rows if row["case"] in ("commit", "prefill")] == [32, 96, 4 * 32]
    for row in rows[4:6]:
        assert [part["rows"] for part in row["parts"]] == [row["rows"] - 512, 512]
        assert row["of_parts"] == pytest.approx(row["wall_ms"] / row["parts_ms"], rel=0.01)
    assert rows[6]["tokens_per_s"] > 0


def test_live_steps_of_a_full_canvas_of_llada(tmp_path, capsys):
    """Times a block of a canvas of 64 whose other K/V is cached, and full canvases. Other cases are refused."""
    model = ["steps", "--model", str(GOLDEN / "llada"), "--device", "cpu"]
    rows = measured(tmp_path, *model, "--cases", "plain", "prefill")
    assert [(row["case"], row["batch"], row["rows"]) for row in rows] == [
        ("plain", 1, 32), ("plain", 3, 96), ("prefill", 4, 512),
    ]  # fmt: skip
    assert main([*model, *SIZES, "--cases", "commit"]) == 1
    assert "--cases commit: is not supported for models that attend to a complete canvas" in capsys.readouterr().out


def a_step(quantization=None):
    """Returns a runner of the tiny shape, and a step of three requests with 64 tokens before their blocks."""
    model = random_model(
        architecture("llada2-tiny"), LayerFactory.create("cpu", torch.float32, quantization=quantization)
    )
    strategy = make_strategy("multi_bd", ("multi_bd",), DecodingContext(32, None, True, 96, vocab_size=1024))
    pool = UnifiedPool(model.kv_shapes, num_pages=20, page_size=32, dtype=torch.float32, device="cpu")
    config = SamplerConfig(32, 1023, 1022, (0,), max_num_reqs=3, max_request_len=96, max_request_pages=6)
    runner = ModelRunner(model, pool, config)
    return runner, StepPlans(strategy, 32, 1023, 1024, 32, 20).decode(3, 64, filled=0.5)


@pytest.mark.parametrize("quantization", [None, "fp8", "int8", "int4", "nvfp4"])
@pytest.mark.parametrize("factor", [1.5, 1.05])
def test_a_layer_with_wrong_results_is_detected(quantization, factor):
    """The tolerance is larger for fp8, which also quantizes activations."""
    runner, plan = a_step(quantization)
    assert layer_error(runner, plan) < 1e-5
    weight = runner.model.layers[1].self_attn.o_proj.weight
    honest = type(weight).matmul

    class Off(type(weight)):
        __slots__ = ()
        calls = 0

        def matmul(self, x, bias=None):
            Off.calls += 1
            return honest(self, x, bias) * (factor if Off.calls == 1 else 1)  # like a wrong kernel

    weight.__class__ = Off
    if quantization == "fp8" and factor == 1.05:
        assert layer_error(runner, plan) > 1e-3
        return
    with pytest.raises(RuntimeError, match="layer 1 has a relative error of"):
        layer_error(runner, plan)


def test_references_take_the_inputs_of_other_kernels():
    """The references accept interleaved gate and up rows, and a split router weight."""
    from runtime.kernels.activation import interleave_gate_up
    from runtime.kernels.moe_router import split_bf16x3

    taking = layers._reference_kernels(layers.replace(TORCH, interleaved_gate_up=True, split_router_weight=True))
    x, weight = torch.randn(5, 8), torch.randn(4, 8)
    for factor in (None, torch.rand(5)):
        scores = taking.router_logits(x, split_bf16x3(weight), factor)
        assert torch.allclose(scores, TORCH.router_logits(x, weight, factor), atol=1e-5)
    gate_up, down = torch.randn(4, 32, 8), torch.randn(4, 8, 16)
    ids, weights = torch.tensor([[0, 3]] * 5, dtype=torch.int32), torch.rand(5, 2)
    expected = TORCH.moe(x, ids, weights, gate_up, down, None)
    assert torch.equal(taking.moe(x, ids, weights, interleave_gate_up(gate_up), down, None), expected)
    assert taking.sandwich_norms is None
    sandwich_norms = layers._reference_kernels(
        replace(TORCH, interleaved_gate_up=True, sandwich_norms=TRITON.sandwich_norms)
    ).sandwich_norms
    made = sandwich_norms.fused_experts(x, ids, interleave_gate_up(gate_up), down, "silu").view(*ids.shape, -1)
    torch.testing.assert_close((weights[:, :, None] * made).sum(1), expected)
    # The router's inputs must be rounded as often as with the kernels: near ties would select other experts otherwise.
    assert taking.gemm_add_norm is None
    assert layers._reference_kernels(TRITON).gemm_add_norm is gemm_add_norm_reference


def test_references_replace_all_kernels_of_diffusion_gemma():
    """If a kernel remained, its output would be compared with itself."""
    build = replace(LayerFactory.create("cpu", torch.float32), kernels=TRITON)
    model = random_model(architecture("diffusiongemma-tiny"), build)

    def held(kind):
        return [value for part in model.modules() for value in vars(part).values() if isinstance(value, kind)]

    assert len(held(KernelSet)) > len(model.layers)
    with layers._references(model, torch.float32):
        assert {each.name for each in held(KernelSet)} == {TORCH.name}
        assert {each.sandwich_norms.post_mlp_norms for each in held(KernelSet)} == {post_mlp_norms_reference}
        assert all(
            each.sandwich_norms.fused_experts is not TRITON.sandwich_norms.fused_experts for each in held(KernelSet)
        )
        assert not held(SandwichNormOps)
    assert set(map(id, held(KernelSet))) == {id(TRITON)}
