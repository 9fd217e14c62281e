"""Tests of the benchmarks for developers: ranks, collectives, host and draw."""

import argparse
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from runtime import LLM
from runtime.bench.__main__ import run
from runtime.errors import ConfigError
from runtime.kernels.ops import TORCH
from runtime.layers.layer_factory import LayerFactory
from tests.distributed.threads import together
from tests.golden import GOLDEN
from tools.bench import draw, host, kernel_times, ranks
from tools.bench.__main__ import TOOLS
from tools.bench.collectives import operations


def bench(line: str, *paths) -> int:
    """Runs the command of a line, with paths as further arguments."""
    return run("tools.bench", TOOLS, [*line.split(), *map(str, paths)])


# ranks, and the kernels of its profiles


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
            seen.append(plan.num_rows)
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


@pytest.mark.matrix
def test_ranks_measures_every_size_with_and_without_expert_parallelism(tmp_path, capsys):
    file = tmp_path / "found.json"
    line = "ranks --arch llada2-tiny --device cpu --batch 2 --steps 4 --context 32 --expert-parallel --prefill 64"
    assert bench(f"{line} --json", file) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [("step_ms" in line, "prefill" in line) for line in lines] == [(True, False), (True, True)] * 3
    assert file.read_text().count('"expert_parallel": 2') == 2


def test_one_rank_of_four_runs_alone(capsys):
    """The one rank has a quarter of the weights, and no other process is started."""
    line = "ranks --arch llada2-tiny --device cpu --sizes 4 --batch 2 --steps 4 --context 32 --prefill 64"
    assert bench(f"{line} --no-communication") == 0
    step, prefill = map(json.loads, capsys.readouterr().out.splitlines())
    assert (step["ranks"], step["communication"], step["batch"]) == (4, False, 2)
    assert step["step_ms"] > 0
    assert prefill["prefill"] == 64


def test_a_batch_must_fit_into_a_step():
    stats = SimpleNamespace(step_seconds=[1.0], batch_sizes=[256], device_seconds=[])
    info = SimpleNamespace(vocab_size=8, max_num_batched_tokens=8192)
    llm = SimpleNamespace(info=info, engine=SimpleNamespace(stats=lambda: stats), generate=lambda *_: None)
    args = argparse.Namespace(context=1, steps=1)
    assert ranks._batch(llm, 256, args) == {"step_ms": 1000.0, "device_ms": 0.0, "steps": 1}
    with pytest.raises(ConfigError, match="--batch 300: the largest step had 256 of the requests"):
        ranks._batch(llm, 300, args)


def test_collectives_of_a_rank_alone_return_its_values():
    group = ranks.RankAlone.create(4, "cpu")
    x = torch.arange(6.0).view(2, 3)
    assert torch.equal(group.all_reduce(x.clone()), x)
    assert torch.equal(group.all_reduce_out(x.clone()), x)
    assert torch.equal(group.all_reduce_max(x.clone()), x)
    assert torch.equal(group.all_gather(x), torch.stack([x] * 4))
    assert group.min_across_ranks(7, x.device) == 7


def event(name, ts, dur, cat="kernel"):
    return {"name": name, "ts": ts, "dur": dur, "cat": cat}


EVENTS = [
    event("_gate_up", 100.0, 10.0), event("cudaGraphLaunch", 90.0, 5.0, "cuda_runtime"),
    event("_reduce_add_norm", 112.0, 8.0), event("barrier_kernel", 115.0, 2.0),  # overlaps the previous kernel
    event("Memcpy DtoH", 130.0, 1.0, "gpu_memcpy"), event("_gate_up", 131.0, 9.0), {"name": "process_name", "ph": "M"},
]  # fmt: skip


def test_kernel_times_are_per_step_and_the_slowest_kernels_are_first():
    found = kernel_times.kernel_times(EVENTS, 2)
    assert list(found) == ["gate and up of experts", "all-reduce", "copies", "idle"]
    assert found["gate and up of experts"] == {"us": 9.5, "launches": 1.0}
    assert found["all-reduce"] == {"us": 5.0, "launches": 1.0}
    assert found["idle"] == {"us": (2 + 10) / 2, "launches": 0.0}
    assert kernel_times.kernel_times([], 1) == {"idle": {"us": 0.0, "launches": 0.0}}
    assert kernel_times.slowest(EVENTS, 2, count=2) == [("_gate_up", 9.5, 1.0), ("_reduce_add_norm", 4.0, 0.5)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_fused_gate_up", "dense GEMMs"), ("_gate_up", "gate and up of experts"),
        ("_persistent_down", "down of experts"), ("ncclDevKernel_AllGather_RING_LL", "other collectives"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING", "all-reduce"),
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "dense GEMMs"), ("_qk_norm_rope_and_cache", "rotary and cache"),
        ("_partial_argmax", "lm_head and sampling"), ("_merge_split_kv", "attention"), ("elementwise_kernel", "other"),
        ("void c10d::symmetric_memory::two_shot_all_reduce_kernel_inplace<bfloat16, 16, 4>", "all-reduce"),
    ],
)  # fmt: skip
def test_kinds_of_kernels(name, kind):
    assert kernel_times.kind_of(name) == kind


@pytest.mark.gpu
def test_a_trace_has_the_kernels_of_a_replayed_graph():
    from runtime.bench.graph_capture import capture

    x = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
    replay = capture(lambda: x @ x)
    found = kernel_times.kernel_times(kernel_times.record(lambda: [replay() for _ in range(3)]), 3)
    assert found["dense GEMMs"]["launches"] == 1.0, json.dumps(found)
    assert found["dense GEMMs"]["us"] > 0


# collectives


@pytest.mark.parametrize(("shared", "names"), [(False, []), (True, ["reduce_add_norm"])])
def test_operations_are_those_of_the_group(shared, names):
    def found(group):
        factory = LayerFactory(torch.device("cpu"), torch.float32, TORCH, "torch", group=group)
        operations_of = operations(factory, 4, 8)
        for work in operations_of.values():
            work()
        return list(operations_of)

    assert together(2, found, shared=shared) == [["backend", "add_norm", *names]] * 2


def test_processes_measure_collectives_together(tmp_path):
    file = tmp_path / "found.json"
    flags = "--tensor-parallel-size 2 --device cpu --rows 2 64 --hidden 16 --repeats 2 --json"
    command = [sys.executable, "-m", "tools.bench", "collectives", *flags.split(), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines == json.loads(file.read_text())
    assert [(line["rows"], line["ranks"], line["mb"]) for line in lines] == [(2, 2, 0.0), (64, 2, 0.004)]
    assert all(line["backend_us"] > 0 and line["add_norm_us"] > 0 for line in lines)


# host


def test_host_measures_every_step_of_a_steady_batch(tmp_path, capsys):
    file = tmp_path / "host.json"
    assert bench("host --batch 3 --context 40 100 --steps 5 --json", file) == 0
    report = json.loads(file.read_text())
    assert [row["context"] for row in report["rows"]] == [40, 100]
    assert all(0 < row["median_ms"] <= row["p99_ms"] * 1.0001 for row in report["rows"])
    assert "context    100" in capsys.readouterr().out
    assert len(host.measure(batch=2, context=33, steps=4, block_size=8, per_step=2)) == 4


# draw

STEPS = {
    "setup": {"model": "llada2-mini", "quantization": None, "dtype": "bfloat16"},
    "results": [{"case": "plain", "batch": 1, "context": 512, "wall_ms": 3.5},
                {"case": "plain", "batch": 8, "context": 512, "wall_ms": 6.5},
                {"case": "commit", "batch": 8, "context": 512, "wall_ms": 8.0}],
}  # fmt: skip
ROUND = {"requests_per_second": 90.0, "latency": {"p50": 0.01, "p90": 0.02}}
LOADS = {"loads": [{"clients": 1, "rounds": [ROUND]}, {"rate": 100.0, "rounds": [ROUND]}]}


def written(folder, *reports):
    paths = [folder / f"{n}.json" for n in range(len(reports))]
    for path, report in zip(paths, reports, strict=True):
        path.write_text(json.dumps(report))
    return paths


@pytest.mark.parametrize("report", [STEPS, LOADS], ids=["steps", "loads"])
def test_a_picture_is_written(tmp_path, report):
    picture = tmp_path / "out.png"
    assert bench("draw", *written(tmp_path, report), "--plot", picture, "--title", "fast", "--cases", "plain") == 0
    first = picture.read_bytes()
    assert first.startswith(b"\x89PNG")
    assert bench("draw", *written(tmp_path, report), "--plot", picture, "--title", "fast") == 0
    assert (picture.read_bytes() != first) is (report is STEPS)  # which has another case


def test_names_and_labels_of_curves():
    assert [(curve.name, curve.points) for curve in draw.steps(STEPS, "")] == [
        ("llada2-mini bfloat16, context 512", [(1, 3.5), (8, 6.5)]),
        ("llada2-mini bfloat16, commit, context 512", [(8, 8.0)]),
    ]
    assert [(curve.name, curve.points, curve.labels) for curve in draw.loads(LOADS, "demo")] == [
        ("demo p50 by clients", [(90.0, 10.0)], ["1"]),
        ("demo p90 by clients", [(90.0, 20.0)], ["1"]),
        ("demo p50 by rate", [(90.0, 10.0)], ["100"]),
        ("demo p90 by rate", [(90.0, 20.0)], ["100"]),
    ]


@pytest.mark.parametrize(
    ("reports", "flags", "code", "message"),
    [
        ([STEPS, LOADS], [], 2, "cannot be drawn together"),
        ([STEPS], ["--names", "a", "b"], 2, "--names needs one entry per file"),
        ([STEPS], ["--cases", "a"], 1, "no results to draw"),
        *(([report], [], 1, "")
          for report in ([], 3, {}, {"setup": {}}, {"setup": {}, "results": []}, {"setup": {}, "results": [{}]},
                         {"setup": {}, "results": [{"case": "plain"}]}, {"loads": [{"a": 1}]}, {"loads": 3})),
    ],
)  # fmt: skip
def test_files_without_results_are_not_drawn(tmp_path, capsys, reports, flags, code, message):
    picture = tmp_path / "out.png"
    assert bench("draw", *written(tmp_path, *reports), "--plot", picture, *flags) == code
    assert message in "".join(capsys.readouterr())
    assert not picture.exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("collectives --tensor-parallel-size 1", "--tensor-parallel-size must be at least 2"),
        ("ranks --arch llada2-tiny --profile --device cpu", "--profile needs a GPU, and --device is cpu"),
        ("ranks --arch llada2-tiny --profile --steps 14", "must be at least 15 for --profile"),
        ("draw none.json --plot out.png", "none.json is not readable JSON: No such file"),
        ("draw text.json --plot out.png", "text.json is not readable JSON: Expecting value"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, monkeypatch, capsys, line, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.json").write_text("<html>")
    monkeypatch.setattr(ranks, "require_gpu", lambda flag: None)
    assert bench(line) == 1
    assert message in capsys.readouterr().out
