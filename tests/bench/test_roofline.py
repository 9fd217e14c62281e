"""Tests of the roofline bounds of a step: bytes and FLOPs of tiny models counted by hand, in total and per part."""

import argparse
from dataclasses import replace

import pytest
import torch

from runtime.bench import roofline
from runtime.bench.model_shapes import architecture, random_model
from runtime.bench.roofline import Part, work_of
from runtime.bench.steady_state import COLUMNS
from runtime.bench.step_plans import StepPlans
from runtime.kernels.segments import COUNT
from runtime.layers.kv_pool import LAYOUTS
from runtime.layers.layer_factory import LayerFactory
from runtime.models.base import resolve_family
from runtime.parameters.weight import named_weights
from runtime.scheduling.strategy import DecodingContext
from runtime.strategies.registry import make_strategy, strategies_supporting

SMALL = {
    "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512, "block_size": 16, "mask_token_id": 511,
    "eos_token_id": 510,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
CONTEXT, REQUESTS = 64, 3


def a_step(config, *, quantization=None, layout="unified", context=CONTEXT):
    """Returns a model of a config, its KV pool, and a step of three requests with one block each, for `work_of`."""
    family = resolve_family(None, config)
    known = family.facts(family.parse(config))
    model = random_model(config, LayerFactory.create("cpu", torch.float32, quantization=quantization))
    settings = DecodingContext(known.block_size, None, True, 512, shift=known.shift, vocab_size=known.vocab_size)
    strategy = make_strategy(family.strategies[0], family.strategies + strategies_supporting(family.key), settings)
    pool = LAYOUTS[layout](model.kv_shapes, num_pages=40, page_size=32, dtype=torch.float32, device="cpu")
    plans = StepPlans(strategy, known.block_size, known.mask_id, known.vocab_size, 32, 40)
    return model, pool, plans.decode(REQUESTS, context, filled=0 if strategy.uniform_noise else 0.5)


def rates(tflops=1.0, tbs=1.0):
    return argparse.Namespace(tflops=tflops, tbs=tbs)


@pytest.mark.parametrize(
    ("name", "flags", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", (None, None), (790.0, 2.94)), ("NVIDIA H200", (None, 5.0), (790.0, 5.0)),
        ("NVIDIA H200", (9.0, None), (9.0, 4.2)), ("NVIDIA L4", (None, None), (60.0, 0.25)),
        ("NVIDIA L4", (None, 0.3), (60.0, 0.3)), ("NVIDIA L4", (1.0, 2.0), (1.0, 2.0)),
    ],
)  # fmt: skip
def test_rates_are_those_of_the_device_unless_flags_set_them(monkeypatch, name, flags, expected):
    """The rates of a device without an entry are measured, unless both flags are set."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(roofline, "measure_rates", lambda device: (60.0, 0.25))
    args = rates(*flags)
    roofline.set_rates(args, torch.device("cuda", 0))
    assert (args.tflops, args.tbs) == expected


def gemm_bytes(rows, inputs, outputs, *, numbers=4):
    """Returns the bytes and FLOPs of a GEMM. `numbers`: bytes per weight element."""
    return Part(inputs * outputs * numbers, 2 * rows * inputs * outputs)


def same(found, expected):
    assert found.nbytes == pytest.approx(expected.nbytes)
    assert found.flops == pytest.approx(expected.flops)


def check_work(model, pool, plan, work):
    """Checks that the parts add up to the total, and that they take no less time in sequence than overlapped."""
    total = sum(work.parts.values(), Part())
    assert work.total == total
    for args in (rates(), rates(1e3, 1), rates(1, 1e3), rates(790, 4.2)):
        assert work.milliseconds(args) == pytest.approx(max(total.nbytes / args.tbs, total.flops / args.tflops) / 1e9)
        each = [max(part.nbytes / args.tbs, part.flops / args.tflops) / 1e9 for part in work.parts.values()]
        assert work.chained(args) == pytest.approx(sum(each))
        assert work.chained(args) >= work.milliseconds(args) * (1 - 1e-9)
        report = work.columns(7.0, args)
        assert report.keys() < set(COLUMNS)
        assert report["of_floor"] >= report["of_chain_floor"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_of_sdar_wait_for_each_other(layout):
    model, pool, plan = a_step(architecture("sdar-8b") | SMALL, layout=layout)
    work = work_of(model, pool, plan, [])
    check_work(model, pool, plan, work)
    rows, sampled = 48, 24
    same(work.parts["embedding"], Part(rows * 64 * 4))
    for layer, deferred_rows in (0, rows), (1, rows), (2, sampled):
        own = f"layers.{layer}"
        same(work.parts[f"{own}.self_attn.qkv_proj"], gemm_bytes(rows, 64, 8 * 32))
        seen = CONTEXT + 16
        attention = Part(REQUESTS * seen * 2 * 2 * 32 * 4, 4 * rows * seen * 4 * 32)
        same(work.parts[f"{own}.attention"], attention)
        same(work.parts[f"{own}.self_attn.o_proj"], gemm_bytes(rows, 4 * 32, 64))
        same(work.parts[f"{own}.mlp.gate_up_proj"], gemm_bytes(deferred_rows, 64, 2 * 160))
        same(work.parts[f"{own}.mlp.down_proj"], gemm_bytes(deferred_rows, 160, 64))
    same(work.parts["head"], gemm_bytes(sampled, 64, 512))
    norms = sum(weight.nbytes for weight in named_weights(model).values() if len(weight.shape) == 1)
    weights = sum(weight.nbytes for weight in named_weights(model).values())
    same(sum((part for part in work.parts.values() if not part.flops), Part()), Part(norms + rows * 64 * 4))
    assert work.total.nbytes == pytest.approx(weights - (512 - rows) * 64 * 4 + 3 * attention.nbytes)
    # Memory-bound and compute-bound parts do not overlap.
    balanced = rates(work.total.flops, work.total.nbytes)
    assert work.milliseconds(balanced) == pytest.approx(1e-9)
    assert work.chained(balanced) > 1.1e-9


def test_experts_of_sdar_moe_wait_for_their_router():
    model, pool, plan = a_step(architecture("sdar-30b-a3b") | SMALL | EXPERTS)
    work = work_of(model, pool, plan, [8, 4, 2])
    check_work(model, pool, plan, work)
    for layer, rows, chosen in (0, 48, 8), (1, 48, 4), (2, 24, 2):
        own = f"layers.{layer}.mlp"
        same(work.parts[f"{own}.gate"], gemm_bytes(rows, 64, 8))
        same(work.parts[f"{own}.gate_up_proj"], Part(chosen * 48 * 64 * 4, 2 * rows * 2 * 48 * 64))
        same(work.parts[f"{own}.down_proj"], Part(chosen * 24 * 64 * 4, 2 * rows * 2 * 24 * 64))
        assert own not in work.parts


def test_a_shared_expert_is_next_to_the_others_llada2():
    model, pool, plan = a_step(architecture("llada2-tiny"))
    work = work_of(model, pool, plan, [4, 4])
    check_work(model, pool, plan, work)
    same(work.parts["layers.0.mlp.gate_up_proj"], gemm_bytes(96, 128, 2 * 256))
    same(work.parts["layers.0.mlp.down_proj"], gemm_bytes(96, 256, 128))
    for layer, rows in (1, 96), (2, 48):
        (name,) = (name for name in work.parts if name.startswith(f"layers.{layer}.mlp"))
        experts = Part(4 * 3 * 64 * 128 * 4, 2 * rows * 4 * 3 * 64 * 128)
        same(work.parts[name], experts + gemm_bytes(rows, 128, 3 * 64) + gemm_bytes(rows, 128, 16) + Part(16 * 4))


def test_parts_of_diffusion_gemma():
    """The model has a dense layer next to its experts, and full attention after two layers with a window.

    Three parts read its embedding table.
    """
    model, pool, plan = a_step(architecture("diffusiongemma-tiny"))
    work = work_of(model, pool, plan, [4, 3, 2])
    check_work(model, pool, plan, work)
    rows = 48
    same(work.parts["embedding"], Part(rows * 64 * 4))
    same(work.parts["head"], gemm_bytes(rows, 64, 224))
    same(work.parts["mean"], gemm_bytes(rows, 64, 224))
    same(work.parts["self_conditioning.mlp.gate_up_proj"], gemm_bytes(rows, 64, 2 * 96))
    for layer, chosen in (0, 4), (1, 3), (2, 2):
        names = [name for name in work.parts if name.startswith(f"layers.{layer}.") and work.parts[name].flops]
        own = f"layers.{layer}"
        assert sorted(names) == [
            f"{own}.{n}" for n in ("attention", "dense+experts", "self_attn.o_proj", "self_attn.qkv_proj")
        ]
        experts = Part(chosen * 3 * 24 * 64 * 4, 2 * rows * 2 * 3 * 24 * 64)
        vectors = Part((4 + 64) * 4)  # the experts' scales and their norm
        same(
            work.parts[f"{own}.dense+experts"],
            gemm_bytes(rows, 64, 3 * 96) + gemm_bytes(rows, 64, 4) + experts + vectors,
        )
    seen = CONTEXT + 16
    first = CONTEXT - 16 + 1  # all rows of a canvas see the window of its first row
    in_window = seen - first
    for layer in (0, 1):
        same(
            work.parts[f"layers.{layer}.attention"],
            Part(REQUESTS * in_window * 2 * 2 * 16 * 4, 4 * rows * in_window * 4 * 16),
        )
    same(work.parts["layers.2.attention"], Part(REQUESTS * seen * 2 * 32 * 4, 4 * rows * seen * 4 * 32))


def test_fp8_gemms_count_half_the_flops():
    """Linear layers and experts are fp8; head, router and attention have 16 bits."""
    other, pool, plan = a_step(architecture("llada2-tiny"))
    rounded = a_step(architecture("llada2-tiny"), quantization="fp8")[0]
    before, after = (work_of(model, pool, plan, [4, 4]) for model in (other, rounded))
    for name in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"):
        assert after.parts[f"layers.0.{name}"].flops == before.parts[f"layers.0.{name}"].flops / 2
        assert after.parts[f"layers.0.{name}"].nbytes < 0.3 * before.parts[f"layers.0.{name}"].nbytes
    router = 2 * 96 * 128 * 16
    assert after.parts["layers.1.mlp"].flops == (before.parts["layers.1.mlp"].flops + router) / 2
    for name in ("head", "layers.0.attention", "embedding"):
        assert after.parts[name] == before.parts[name]


def test_a_request_without_rows_reads_no_keys():
    model, pool, plan = a_step(architecture("llada2-tiny"))
    plan.segments[1, COUNT] = 0
    read = work_of(model, pool, plan, [4, 4]).parts["layers.0.attention"]
    assert read.nbytes == 2 * (CONTEXT + 32) * 2 * 2 * 32 * 4


def test_a_step_that_samples_nothing_has_no_head():
    model, pool, plan = a_step(architecture("llada2-tiny"))
    work = work_of(model, pool, replace(plan, blocks=None), [4, 0])
    assert work.parts["head"] == work.parts["layers.2.mlp"] == Part()
    assert work.parts["layers.1.mlp"].flops > 0
