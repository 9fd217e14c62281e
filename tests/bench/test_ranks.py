"""Tests of `runtime.bench ranks`, which compares served steps on one rank and on two."""

import argparse
import json

import pytest
import torch

from runtime import LLM
from runtime.bench import kernel_times, ranks
from runtime.bench.__main__ import main
from tests.golden import GOLDEN


@pytest.mark.parametrize(("batch", "rows"), [(2, 64), (0, 192)])
def test_a_profile_has_steps_of_one_kind(monkeypatch, batch, rows):
    """Decode steps have one block per request; the prefill step has prompts and blocks."""
    seen = []

    def record(work):
        before = len(seen)
        work()
        return [{"cat": "kernel", "name": "_rms_norm", "ts": 10.0 * n, "dur": 4.0} for n in range(len(seen) - before)]

    monkeypatch.setattr(kernel_times, "record", record)
    args = argparse.Namespace(context=32, prefill=96, steps=20)
    with LLM(str(GOLDEN / "llada2_tiny"), device="cpu", skip_tokenizer=True, block_size=32, max_num_reqs=4) as llm:
        launch = llm.engine.runner.launch_forward

        def launched(plan):
            seen.append(len(plan.tokens))
            launch(plan)

        monkeypatch.setattr(llm.engine.runner, "launch_forward", launched)
        found = ranks._profile(llm, batch, args)
        assert not llm.engine.has_work()
        assert llm.engine.stats().pages_used == 0
    count = ranks.PROFILED if batch else 1
    assert seen[-count:] == [rows] * count
    assert found["profile"] == (batch or "prefill")
    assert found["kinds"]["norms"] == {"us": 4.0, "launches": 1.0}
    assert found["kinds"]["idle"]["us"] == pytest.approx(6.0 * (count - 1) / count)


def test_profiles_need_a_device_and_steps(capsys, monkeypatch):
    flags = ["ranks", "--arch", "llada2-tiny", "--profile"]
    assert main([*flags, "--device", "cpu"]) == 1
    assert "--profile needs a GPU, and --device is cpu" in capsys.readouterr().out
    monkeypatch.setattr(ranks, "require_gpu", lambda flag: None)
    assert main([*flags, "--steps", str(ranks.WARMUP_STEPS + ranks.PROFILED - 1)]) == 1
    assert "must be at least 15 for --profile" in capsys.readouterr().out


@pytest.mark.matrix
def test_the_table(tmp_path, capsys):
    where = tmp_path / "found.json"
    flags = [
        "--arch",
        "llada2-tiny",
        "--device",
        "cpu",
        "--batch",
        "2",
        "--steps",
        "4",
        "--context",
        "32",
        "--expert-parallel",
        "--prefill",
        "64",
    ]
    assert main(["ranks", *flags, "--json", str(where)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [("step_ms" in line, "prefill" in line) for line in lines] == [(True, False), (True, True)] * 3
    assert where.read_text().count('"expert_parallel": 2') == 2


def test_one_rank_of_four_runs_alone(capsys):
    """The one rank has a quarter of the weights, and no other process is started."""
    flags = "--arch llada2-tiny --device cpu --sizes 4 --batch 2 --steps 4 --context 32 --prefill 64 --no-communication"
    assert main(["ranks", *flags.split()]) == 0
    step, prefill = map(json.loads, capsys.readouterr().out.splitlines())
    assert (step["ranks"], step["communication"], step["batch"]) == (4, False, 2)
    assert step["step_ms"] > 0
    assert prefill["prefill"] == 64


def test_collectives_of_a_rank_alone_return_its_values():
    group = ranks.RankAlone.create(4, "cpu")
    x = torch.arange(6.0).view(2, 3)
    assert torch.equal(group.all_reduce(x.clone()), x)
    assert torch.equal(group.all_reduce_out(x.clone()), x)
    assert torch.equal(group.all_reduce_max(x.clone()), x)
    assert torch.equal(group.all_gather(x), torch.stack([x] * 4))
    assert group.min_across_ranks(7, x.device) == 7
