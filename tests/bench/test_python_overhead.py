"""Tests of the host benchmark, which measures a steady batch of the real engine."""

import argparse
import json

from runtime.bench import python_overhead


def test_measures_every_step_of_a_steady_batch(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    python_overhead.add_arguments(parser)
    out = tmp_path / "host.json"
    args = parser.parse_args(["--batch", "3", "--context", "40", "100", "--steps", "5", "--json", str(out)])
    assert python_overhead.main(args) == 0
    report = json.loads(out.read_text())
    assert [row["context"] for row in report["rows"]] == [40, 100]
    assert all(0 < row["median_ms"] <= row["p99_ms"] * 1.0001 for row in report["rows"])
    assert "context    100" in capsys.readouterr().out


def test_the_runner_fills_the_requested_number_of_positions():
    times = python_overhead.measure(batch=2, context=33, steps=4, block_size=8, per_step=2)
    assert len(times) == 4
