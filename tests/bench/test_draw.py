"""Tests of `runtime.bench draw`, which plots the reports of other tools."""

import json

import pytest

from runtime.bench import draw
from runtime.bench.__main__ import main

STEPS = {
    "setup": {"model": "llada2-mini", "quantization": None, "dtype": "bfloat16"},
    "results": [
        {"case": "plain", "batch": 1, "context": 512, "wall_ms": 3.5},
        {"case": "plain", "batch": 8, "context": 512, "wall_ms": 6.5},
        {"case": "commit", "batch": 8, "context": 512, "wall_ms": 8.0},
    ],
}
ROUND = {"requests_per_second": 90.0, "latency": {"p50": 0.01, "p90": 0.02}}
LOADS = {"loads": [{"clients": 1, "rounds": [ROUND]}, {"rate": 100.0, "rounds": [ROUND]}]}


def written(tmp_path, *reports):
    paths = [tmp_path / f"{n}.json" for n in range(len(reports))]
    for path, report in zip(paths, reports, strict=True):
        path.write_text(json.dumps(report))
    return [str(path) for path in paths]


@pytest.mark.parametrize("report", [STEPS, LOADS], ids=["steps", "loads"])
def test_a_picture_is_written(tmp_path, report):
    picture = tmp_path / "out.png"
    argv = ["draw", *written(tmp_path, report), "--plot", str(picture), "--title", "so fast", "--cases", "plain"]
    assert main(argv) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


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


def test_reports_that_cannot_be_plotted_are_refused(tmp_path, capsys):
    picture = str(tmp_path / "out.png")
    assert main(["draw", *written(tmp_path, STEPS, LOADS), "--plot", picture]) == 2
    assert "cannot be drawn together" in capsys.readouterr().err
    assert main(["draw", *written(tmp_path, STEPS), "--plot", picture, "--names", "a", "b"]) == 2
    assert main(["draw", str(tmp_path / "none.json"), "--plot", picture]) == 1
    assert "none.json is not readable JSON: No such file" in capsys.readouterr().out
    (tmp_path / "text.json").write_text("<html>")
    assert main(["draw", str(tmp_path / "text.json"), "--plot", picture]) == 1
    assert "text.json is not readable JSON: Expecting value" in capsys.readouterr().out
