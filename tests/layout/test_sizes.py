"""Tests of the maximum length of Python files."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_LINES = 800


@pytest.mark.parametrize("package", ["runtime", "training", "operator", "tools", "tests", "e2e"])
def test_files_are_short(package):
    files = list((ROOT / package).rglob("*.py"))
    assert files
    lines = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8").count("\n") for file in files}
    assert {file: count for file, count in lines.items() if count > MAX_LINES} == {}
