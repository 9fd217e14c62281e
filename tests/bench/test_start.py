"""`runtime.bench start`: a server of a tiny shape is started, and the phases of its start add up."""

import json

import pytest

from runtime.bench.__main__ import main


@pytest.mark.matrix
def test_the_phases_of_a_start_add_up(tmp_path, capsys):
    command = ["start", "--arch", "llada2-tiny", "--directory", str(tmp_path), "--runs", "1", "--kernels", "cold"]
    assert main([*command, "--server-args", "--device cpu", "--json", str(tmp_path / "out.json")]) == 0
    (row,) = json.loads((tmp_path / "out.json").read_text())
    assert row["kernel_cache"] == "cold"
    assert row["ready"] == pytest.approx(row["health"] + row["engine"] + row["weights"] + row["kernels"])
    assert row["weight_bytes"] > 0 or row["weights"] == 0  # loaded between two polls
    assert "ready" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--arch", "llada2-tiny", "--model", "checkpoint"], "leave out --model"),
        (["--arch", "nope"], "llada2-mini"),
    ],
)
def test_wrong_arguments_are_named(arguments, sentence, capsys):
    assert main(["start", *arguments]) == 1
    assert sentence in capsys.readouterr().out
