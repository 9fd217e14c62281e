"""Tests of the benchmark of decisions."""

import json
from pathlib import Path

import pytest

from runtime.bench.__main__ import main

FLAGS = ("decide", "--device", "cpu", "--group", "3")


def test_ways_to_answer_are_compared(tmp_path: Path) -> None:
    """Joint answers of one state share forwards. The answers to questions without a known one have no accuracy."""
    found, given = tmp_path / "found.json", tmp_path / "questions.jsonl"
    assert main([*FLAGS, "--n", "6", "--json", str(found)]) == 0
    single, joint, turned = json.loads(found.read_text())["rows"]
    assert (single["same"], single["difference"], single["forwards"]) == (1, 0, 6)
    assert joint["forwards"] < 6
    assert all(0 <= row["accuracy"] <= 1 for row in (single, joint, turned))
    question = {"state": {"mail": "late"}, "instructions": "Which?", "options": ["a", "b"]}
    given.write_text("\n".join(json.dumps(question | {"state": str(n // 2)}) for n in range(4)))
    assert main([*FLAGS, "--questions", str(given), "--json", str(found)]) == 0
    assert [row["accuracy"] for row in json.loads(found.read_text())["rows"]] == [None] * 3


def test_a_file_without_questions_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = tmp_path / "questions.jsonl"
    given.write_text('{"state": "x"}\n')
    assert main([*FLAGS, "--questions", str(given)]) == 1
    assert "line 1: needs state, instructions and options" in capsys.readouterr().out
