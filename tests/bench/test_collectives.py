"""Tests of `runtime.bench collectives`: times of single all-reduces, and the operations that a group has."""

import json
import subprocess
import sys

import pytest
import torch

from runtime.bench.__main__ import main
from runtime.bench.collectives import operations
from runtime.kernels.ops import TORCH
from runtime.layers.layer_factory import LayerFactory
from tests.distributed.threads import together


@pytest.mark.parametrize(("shared", "names"), [(False, []), (True, ["reduce_add_norm"])])
def test_operations_are_those_of_the_group(shared, names):
    def found(group):
        factory = LayerFactory(torch.device("cpu"), torch.float32, TORCH, "torch", group=group)
        operations_of = operations(factory, 4, 8)
        for work in operations_of.values():
            work()
        return list(operations_of)

    assert together(2, found, shared=shared) == [["backend", "add_norm", *names]] * 2


def test_processes_measure_together(tmp_path):
    where = tmp_path / "found.json"
    flags = ["--device", "cpu", "--rows", "2", "64", "--hidden", "16", "--repeats", "2", "--json", str(where)]
    command = [sys.executable, "-m", "runtime.bench", "collectives", "--tensor-parallel-size", "2", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines == json.loads(where.read_text())
    assert [(line["rows"], line["ranks"], line["mb"]) for line in lines] == [(2, 2, 0.0), (64, 2, 0.004)]
    assert all(line["backend_us"] > 0 and line["add_norm_us"] > 0 for line in lines)


def test_one_rank_is_refused(capsys):
    assert main(["collectives", "--tensor-parallel-size", "1"]) == 1
    assert "--tensor-parallel-size must be at least 2" in capsys.readouterr().out
