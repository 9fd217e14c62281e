"""Tests of `runtime.bench steps` on the CPU with the tiny shape: measured figures, planned steps and refusals."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runtime.bench import model_shapes
from runtime.bench.__main__ import main
from runtime.bench.model_shapes import architecture, random_model
from runtime.bench.step_plans import StepPlans
from runtime.bench.steps import table
from runtime.errors import ConfigError
from runtime.kernels.segments import ForwardRows, RowTables, expand_segments_reference
from runtime.layers.kv_pool import UnifiedPool
from runtime.layers.layer_factory import LayerFactory
from runtime.models.base import resolve_family
from runtime.parameters.weight import named_weights
from runtime.scheduling.step_plan import NUM_STEPS, StepPlan
from runtime.scheduling.strategy import DecodingContext
from runtime.strategies.registry import make_strategy, strategies
from runtime.worker.candidates import SamplerConfig
from runtime.worker.host_buffers import PinnedBuffer
from runtime.worker.input_batch import forward_inputs
from runtime.worker.model_runner import ModelRunner
from runtime.worker.request_states import RequestStates

ROOT = Path(__file__).resolve().parents[2]
TINY = ["steps", "--arch", "llada2-tiny", "--random-weights", "--device", "cpu"]
NOISY = ["steps", "--arch", "diffusiongemma-tiny", "--random-weights", "--device", "cpu"]
QUICK = ["--batch", "1", "3", "--prompt", "40", "--repeats", "1", "--warmup", "1"]


def test_the_table_is_measured_and_written(tmp_path, capsys):
    sizes = ["--batch", "1", "2", "--context", "64", "--prompt", "64", "--repeats", "2", "--warmup", "1"]
    assert main([*TINY, *sizes, "--budget", "64", "--json", str(tmp_path / "steps.json")]) == 0
    results = json.loads((tmp_path / "steps.json").read_text())
    cases = [(r["case"], r["batch"], r["context"]) for r in results["results"]]
    assert cases == [("decode", 1, 64), ("decode", 2, 64), ("prefill", 1, 64), ("prefill", 2, 64)]
    assert all(r["step_ms"] > 0 for r in results["results"])
    assert [r["forwards"] for r in results["results"][2:]] == [1, 2], "the budget holds one prompt"
    assert (results["setup"]["dtype"], results["setup"]["quantization"]) == ("float32", None)
    assert capsys.readouterr().out.endswith(table(results["results"]) + "\n")
    assert main([*TINY, *sizes, "--quantization", "fp8", "--json", str(tmp_path / "fp8.json")]) == 0
    rounded = json.loads((tmp_path / "fp8.json").read_text())["setup"]
    assert rounded["quantization"] == "fp8"
    assert rounded["weights_gb"] < results["setup"]["weights_gb"]


def test_a_canvas_of_diffusion_gemma_is_timed_as_its_family_declares_it(tmp_path, capsys):
    """Blocks have the size of the family's canvas, and begin at the end of any context."""
    assert main([*NOISY, *QUICK, "--context", "41", "--json", str(tmp_path / "steps.json")]) == 0
    results = json.loads((tmp_path / "steps.json").read_text())
    assert results["setup"]["block_size"] == 16
    assert results["setup"]["filled"] is None
    assert [(r["case"], r["batch"], r["context"]) for r in results["results"]] == [
        ("decode", 1, 41), ("decode", 3, 41), ("prefill", 1, 40), ("prefill", 3, 40),
    ]  # fmt: skip
    assert "decode step, context 41" in capsys.readouterr().out


def plans(strategy: str, block_size: int = 8) -> StepPlans:
    context = DecodingContext(block_size, None, True, 96, vocab_size=9)
    made = make_strategy(strategy, (strategy,), context)
    return StepPlans(made, block_size, None if made.uniform_noise else 8, 9, 16, 20)


def rows_of(plan: StepPlan) -> ForwardRows:
    """Returns the rows of a plan of `plans`."""
    states = RequestStates(5, 128, torch.device("cpu"), max_pages=8)
    states.write_pages(plan.page_writes, PinnedBuffer(states.tokens.device))
    shape, arrays = forward_inputs(plan, page_size=16)
    tables = RowTables(states.tokens, states.max_len, states.pages, 16)
    segments = torch.from_numpy(arrays["segments"])
    return expand_segments_reference(segments, tables, shape.rows, shape.tiles, shape.tile_rows)


@pytest.mark.parametrize("strategy", strategies())
def test_plans_use_each_slot_once_and_read_existing_kv(strategy):
    made = plans(strategy)
    steps = [(made.decode(3, 64), 64), (made.decode(3, 64, filled=0.5), 64)]
    steps += [(plan, 0) for plan in made.prefill(5, 40, budget=80)]
    assert len(steps) == 5
    for plan, cached in steps:
        rows = rows_of(plan)
        assert len(set(rows.slots.tolist())) == len(rows.slots) == plan.num_rows == rows.query_tiles[:, 2].sum()
        assert rows.slots.max() < 20 * 16
        assert rows.positions.min() == cached
        assert (rows.visible_end > rows.positions).all()
        assert rows.visible_end.max() <= rows.positions.max() + 1
        assert len(plan.writes) == len(plan.segments)
        assert all(write.tokens.max() < 9 for write in plan.writes)


def test_blocks_are_half_masks():
    masks = plans("multi_bd").decode(3, 64, filled=0.5)
    assert masks.blocks.sampled.sum(1).tolist() == [4] * 3
    assert [group.algorithm.key for group in masks.blocks.groups] == ["threshold"]


def test_blocks_of_diffusion_gemma_are_all_noise():
    noise = plans("diffusion_gemma").decode(3, 64)
    assert noise.blocks.sampled.all()
    assert [group.algorithm.key for group in noise.blocks.groups] == ["noise"]
    assert all(len(set(write.tokens.tolist())) > 4 for write in noise.writes)


def test_a_canvas_of_diffusion_gemma_is_a_second_step_behind_a_causal_prompt():
    made = plans("diffusion_gemma")
    step = made.decode(2, 41)
    rows = rows_of(step)
    assert rows.is_editable.all()
    assert set(rows.visible_end.tolist()) == {49}
    assert set(rows.window_pos.tolist()) == {41}
    assert step.blocks.numbers[:, NUM_STEPS].tolist() == [1, 1]
    assert sorted(step.blocks.req_slot.tolist()) == [0, 1]
    assert step.blocks.uniform_noise
    assert step.blocks.sampling_params[:, 0].tolist() == [1, 1]
    (prompt,) = made.prefill(1, 41, budget=80)
    rows = rows_of(prompt)
    assert not rows.is_editable.any()
    assert torch.equal(rows.visible_end, rows.positions + 1)
    assert torch.equal(rows.window_pos, rows.positions)


def test_diffusion_gemma_gets_the_distributions_of_the_last_step():
    build = LayerFactory.create("cpu", torch.float32)
    model = random_model(architecture("diffusiongemma-tiny"), build)
    made = plans("diffusion_gemma", 16)
    pool = UnifiedPool(model.kv_shapes, num_pages=20, page_size=16, dtype=torch.float32, device="cpu")
    config = SamplerConfig(
        16, None, 8, eos_ids=(0,), max_num_reqs=2, max_request_len=64, max_request_pages=4, vocab_size=9
    )
    runner = ModelRunner(model, pool, config)
    plan = made.decode(2, 41)
    runner.run(plan)
    assert bool(runner.batch(plan).self_conditioning.abs().sum(1).all())


def test_a_canvas_of_full_attends_to_all_of_itself():
    made = plans("full")
    assert set(rows_of(made.decode(2, 40)).visible_end.tolist()) == {48}
    (prompt,) = made.prefill(2, 40, budget=80)
    assert rows_of(prompt).is_editable.all()
    assert set(rows_of(prompt).visible_end.tolist()) == {40}


SHAPES = {
    "llada2-mini": "llada2", "llada2-flash": "llada2", "llada2-tiny": "llada2", "llada-8b": "llada",
    "llada-moe-7b": "llada_moe", "dream-7b": "dream", "fast-dllm-v2-7b": "fast_dllm_v2", "sdar-8b": "sdar",
    "sdar-30b-a3b": "sdar_moe", "diffusiongemma-26b-a4b": "diffusion_gemma", "diffusiongemma-tiny": "diffusion_gemma",
}  # fmt: skip


@pytest.mark.parametrize(("name", "key"), SHAPES.items())
def test_named_shapes_are_valid(name, key):
    config = architecture(name)
    family = resolve_family(None, config)
    assert family.key == key
    assert family.facts(family.parse(config)).max_positions >= 512
    with pytest.raises(ConfigError, match="llada2-mini"):
        architecture(name + "?")


def test_random_models_are_filled_and_repeatable():
    first, second = (
        random_model(architecture("llada2-tiny"), LayerFactory.create("cpu", torch.float32), seed=3) for _ in range(2)
    )
    again = named_weights(second)
    for name, weight in named_weights(first).items():
        assert torch.isfinite(weight.tensor).all()
        assert torch.equal(weight.tensor, again[name].tensor)
        assert weight.tensor.std() > 0


def test_random_weights_are_drawn_piece_by_piece(monkeypatch):
    """Weights larger than a piece have no repeated numbers."""
    monkeypatch.setattr(model_shapes, "PIECE", 5000)  # less than an expert, 39 rows of the head
    build = LayerFactory.create("cpu", torch.float32)
    for name, weight in named_weights(random_model(architecture("llada2-tiny"), build)).items():
        assert len(weight.tensor.unique()) > 0.9 * weight.size, name
        if len(weight.shape) > 1 and name != "embed_tokens.weight":
            assert weight.tensor.std() == pytest.approx(weight.shape[-1] ** -0.5, rel=0.05), name


@pytest.mark.matrix
def test_runs_without_the_servers_packages():
    """The GPU machine has torch, triton and transformers, not the server's dependencies."""
    names = ["msgspec", "zmq", "fastapi", "uvicorn", "pydantic", "httptools", "prometheus_client"]
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({names!r})); from runtime.bench.__main__ import main; "
        f"sys.exit(main({[*TINY, '--batch', '1', '--context', '32', '--prompt', '--repeats', '1']!r}))"
    )
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, run.stderr
    assert "decode step, context 32" in run.stdout
