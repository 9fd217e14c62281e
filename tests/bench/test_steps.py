"""`runtime.bench steps` on the CPU with the tiny shape: real runs, sane figures, refusals."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runtime.bench.__main__ import main
from runtime.bench.step_plans import decode_plan, prefill_plans
from runtime.bench.steps import table
from runtime.errors import ConfigError
from runtime.layers.build import Build
from runtime.models import resolve_family
from runtime.models.architectures import ARCHITECTURES, architecture, random_model

ROOT = Path(__file__).resolve().parents[2]
TINY = ["steps", "--arch", "llada2-tiny", "--random-weights", "--device", "cpu"]


def test_the_table_is_measured_and_written(tmp_path, capsys):
    sizes = ["--batch", "1", "2", "--context", "64", "--prompt", "64", "--repeats", "2", "--warmup", "1"]
    assert main([*TINY, *sizes, "--budget", "64", "--json", str(tmp_path / "steps.json")]) == 0
    results = json.loads((tmp_path / "steps.json").read_text())
    cases = [(r["case"], r["batch"], r["context"]) for r in results["results"]]
    assert cases == [("decode", 1, 64), ("decode", 2, 64), ("prefill", 1, 64), ("prefill", 2, 64)]
    assert all(r["step_ms"] > 0 for r in results["results"])
    assert [r["forwards"] for r in results["results"][2:]] == [1, 2], "the budget holds one prompt"
    assert results["setup"]["dtype"] == "float32"
    assert capsys.readouterr().out.endswith(table(results["results"]) + "\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["steps", "--arch", "llada2-tiny"], "--random-weights"),
        (["steps", "--random-weights"], "--arch NAME"),
        (["steps", "--arch", "nope", "--random-weights"], "llada2-mini"),
        ([*TINY, "--context", "33"], "multiple of --block-size 32"),
        ([*TINY, "--batch", "0"], "--batch must be at least 1"),
        ([*TINY, "--filled", "1"], "--filled 1.0 must be"),
        ([*TINY, "--graphs"], "--graphs needs a CUDA device"),
        ([*TINY, "--attn-impl", "triton"], "needs a CUDA device"),
    ],
)
def test_refusals_name_the_flag(arguments, sentence, capsys):
    assert main(arguments) == 1
    assert sentence in capsys.readouterr().out


def test_plans_use_each_slot_once():
    plans = [decode_plan(3, 64, block_size=32, page_size=16, mask_id=5, pages=20)]
    plans += [decode_plan(3, 64, block_size=32, page_size=16, mask_id=5, pages=20, filled=0.5)]
    assert plans[1].blocks.sampled.sum(1).tolist() == [16] * 3
    plans += prefill_plans(5, 40, block_size=8, page_size=16, vocab_size=9, pages=20, budget=80)
    for plan in plans:
        assert len(set(plan.slots.tolist())) == len(plan.slots) == len(plan.tokens) == plan.tiles[:, 2].sum()
        assert plan.slots.max() < 20 * 16


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_named_shapes_are_valid(name):
    config = architecture(name)
    assert resolve_family(None, config).parse(config).layers > 2
    with pytest.raises(ConfigError, match="llada2-mini"):
        architecture(name + "?")


def test_random_models_are_filled_and_repeatable():
    first, second = (
        random_model(architecture("llada2-tiny"), Build.choose("cpu", torch.float32), seed=3) for _ in range(2)
    )
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.isfinite(a).all()
        assert torch.equal(a, b)
        assert a.std() > 0


def test_runs_without_the_servers_packages():
    """The GPU machine has torch, triton and transformers, not the server's dependencies."""
    names = ["msgspec", "zmq", "fastapi", "uvicorn", "pydantic", "httptools", "prometheus_client"]
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({names!r})); from runtime.bench.__main__ import main; "
        f"sys.exit(main({[*TINY, '--batch', '1', '--context', '32', '--prompt', '--repeats', '1']!r}))"
    )
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    assert "decode step, context 32" in run.stdout
