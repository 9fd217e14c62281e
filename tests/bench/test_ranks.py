"""Served steps on one rank and on two."""

import pytest

from runtime.bench.__main__ import main


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
        "--deal",
        "--prefill",
        "64",
    ]
    assert main(["ranks", *flags, "--json", str(where)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [("step_ms" in line, "prefill" in line) for line in lines] == [(True, False), (True, True)] * 3
    assert where.read_text().count('"expert_parallel": 2') == 2
