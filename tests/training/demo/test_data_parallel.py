"""Tests of data parallel training: gradients of a divided batch, equal weights, and one clock for all ranks."""

import dataclasses
import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.training.demo.test_train import TOY
from training.demo import train as script
from training.demo.batch import Tensors, to_device
from training.demo.data_parallel import DataParallel
from training.demo.feed import local_batches
from training.demo.presets import PRESETS
from training.demo.run import launcher
from training.demo.tokenizer import make_tokenizer, save_tokenizer

CPU = torch.device("cpu")
RANKS = 2
PRESET = dataclasses.replace(TOY, eval_prompts=0, total_minutes=0.02, eval_every_minutes=0.008)
STEP_SECONDS = 0.03  # duration of a step on rank 0, whose clock counts


def part(out: Path, rank: int) -> Tensors:
    """Returns a rank's rows of a divided batch."""
    rows = script.rank_preset(PRESET, RANKS)
    return to_device(next(local_batches(rows, out / "tokenizer" / "tokenizer.json", f"part/{rank}")), CPU)


def joined(parts: list[Tensors]) -> Tensors:
    """Returns the rows of all parts as one batch."""
    batch = {name: torch.cat([p[name] for p in parts]) for name in parts[0]}
    before = itertools.accumulate((p["ids"].numel() for p in parts[:-1]), initial=0)
    batch["index"] = torch.cat([p["index"] + tokens for p, tokens in zip(parts, before, strict=True)])
    return batch


def gradients(trainer: script.Trainer, batch: Tensors) -> dict[str, torch.Tensor]:
    """Returns the gradients of a batch by parameter, the loss, and the experts' load; then resets them."""
    found = {"loss": trainer.backward(batch), "load": torch.cat([gate.load for gate in trainer.gates]).clone()}
    found |= {name: p.grad.clone() for name, p in trainer.model.named_parameters()}
    trainer.model.zero_grad(set_to_none=True)
    for gate in trainer.gates:
        gate.load.zero_()
    return found


def train_rank(rank: int, out: Path) -> None:
    """Runs a rank in its process, and writes its state after one backward pass and after the training."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=RANKS)
    trainer = script.Trainer(PRESET, out, 0, DataParallel(CPU, rank, RANKS))
    first = gradients(trainer, part(out, rank))
    ticks = itertools.count()
    tick_seconds = STEP_SECONDS / 2 * (1 + 9 * rank)  # the clocks of the ranks differ
    script.time = SimpleNamespace(perf_counter=lambda: next(ticks) * tick_seconds)
    script.train(trainer, float("inf"))
    state = {"first": first, "weights": trainer.model.state_dict(), "average": trainer.average.weights}
    torch.save({**state, "progress": (trainer.step_count, trainer.seconds)}, out / f"rank{rank}.pt")
    trainer.ranks.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns the directory and the ranks' states after a training by two processes."""
    out = tmp_path_factory.mktemp("ranks")
    (out / "tokenizer").mkdir()
    save_tokenizer(make_tokenizer(), out / "tokenizer", PRESET.shape.max_position_embeddings)
    mp.spawn(train_rank, (out,), RANKS)
    return out, [torch.load(out / f"rank{rank}.pt", weights_only=True) for rank in range(RANKS)]


@pytest.mark.matrix
def test_a_divided_batch_has_the_gradients_of_the_complete_one(trained) -> None:
    out, states = trained
    parts = [part(out, rank) for rank in range(RANKS)]
    assert parts[0]["weights"].sum() != parts[1]["weights"].sum()
    expected = gradients(script.Trainer(PRESET, out, 0, DataParallel(CPU)), joined(parts))
    for state in states:
        assert state["first"].keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(state["first"][name], value, rtol=1e-4, atol=1e-6)
    assert torch.equal(states[0]["first"]["load"], expected["load"])
    assert expected["load"].sum() > 0


@pytest.mark.matrix
def test_weights_stay_equal_on_all_ranks(trained) -> None:
    out, (first, second) = trained
    begin = script.Trainer(PRESET, out, 0, DataParallel(CPU)).model.state_dict()
    for name, value in first["weights"].items():
        assert torch.equal(value, second["weights"][name])
        assert torch.equal(first["average"][name], second["average"][name])
        assert name.endswith("expert_bias") or not torch.equal(value, begin[name])


@pytest.mark.matrix
def test_the_clock_of_rank_0_ends_the_training(trained) -> None:
    out, (first, second) = trained
    assert first["progress"] == second["progress"]
    steps, seconds = first["progress"]
    assert seconds == pytest.approx(PRESET.total_minutes * 60, abs=script.CLOCK_EVERY * STEP_SECONDS)
    assert steps == pytest.approx(PRESET.total_minutes * 60 / STEP_SECONDS, abs=script.CLOCK_EVERY)
    entries = [json.loads(text) for text in (out / "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries] == [20, steps]  # only one rank writes


@pytest.mark.slow
def test_torchrun_trains_and_resumes(tmp_path) -> None:
    flags = "--preset cpu --device cpu --eval-prompts 0 --minutes 0.001"  # at least CLOCK_EVERY steps
    command = [sys.executable, *launcher(RANKS), "training.demo.train", *flags.split(), "--out", str(tmp_path)]
    for more in ([], ["--resume"]):
        done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    first, last = [json.loads(text) for text in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert 0 < first["step"] < last["step"]
    assert done.stdout.count(f"step {first['step']}\n") == 1  # only rank 0 prints
    assert (tmp_path / "checkpoint" / "model.safetensors").exists()


def test_ranks_that_do_not_divide_the_rows_are_refused(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(script, "join", lambda device: DataParallel(CPU, 0, 3))
    with pytest.raises(SystemExit):
        script.main(["--preset", "cpu", "--device", "cpu", "--out", str(tmp_path)])
    assert f"--nproc-per-node of torchrun: 3 must divide the {PRESETS['cpu'].rows} rows" in capsys.readouterr().err


def test_workers_of_all_ranks_use_half_of_the_cores(monkeypatch) -> None:
    monkeypatch.setattr(script.os, "cpu_count", lambda: 64)
    assert script.rank_preset(PRESETS["gpu"], 1) == PRESETS["gpu"]
    four = script.rank_preset(PRESETS["gpu"], 4)
    assert (four.rows, four.workers) == (12, 8)
    assert script.rank_preset(PRESETS["cpu"], 2).workers == 0
