"""Tests of `runtime.bench start` with a tiny shape: the phases of a server's start add up."""

import json
import subprocess
import sys
from subprocess import PIPE

import pytest

from runtime.bench.__main__ import main
from runtime.bench.start import peak_memory, tokens_between

pytestmark = pytest.mark.processes


@pytest.mark.matrix
def test_the_phases_of_a_start_add_up(tmp_path, capsys):
    command = ["start", "--arch", "llada2-tiny", "--directory", str(tmp_path), "--runs", "1", "--kernels", "cold"]
    command += ["--clients", "2", "--period", "1"]
    assert main([*command, "--server-args", "--device cpu", "--json", str(tmp_path / "out.json")]) == 0
    row, load = json.loads((tmp_path / "out.json").read_text())
    assert row["kernel_cache"] == "cold"
    assert row["ready"] == pytest.approx(row["health"] + row["engine"] + row["weights"] + row["kernels"])
    assert row["weight_bytes"] > 0 or row["weights"] == 0  # loaded between two polls
    assert row["host_memory"] > 100_000_000  # of the frontend and the backend, which imports torch
    assert load["first"] > 0
    assert load["second"] > 0
    assert (load["clients"], load["graphs_left"], load["failures"]) == (2, [0, 0, 0], 0)
    assert "2 clients from /ready on" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_the_peak_memory_of_children_counts():
    program = "data = b'x' * (64 << 20); del data; print(1, flush=True); input()"
    command = ["sh", "-c", '"$0" -c "$1"; true', sys.executable, program]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"1\n"
        peak = peak_memory(shell.pid)
        shell.communicate(b"\n")
    assert peak > 64 << 20


def test_an_answer_counts_in_both_periods():
    answers = [(0.0, 1.0, 10), (1.0, 3.0, 8), (3.5, 4.0, 5)]
    assert [tokens_between(answers, at, at + 2) for at in (0, 2)] == [14, 9]
