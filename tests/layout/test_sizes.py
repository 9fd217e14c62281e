"""No file of the distribution grows past what one idea takes, nor the operator past what a newcomer reads in a day."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_LINES = 300
OPERATORS_LINES = 6_360  # 6.0k of what was asked first, and 310 for adapters and ranks


@pytest.mark.parametrize("package", ["runtime", "operator", "tools"])
def test_files_are_short(package):
    files = list((ROOT / package).rglob("*.py"))
    assert files
    lines = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8").count("\n") for file in files}
    assert {file: count for file, count in lines.items() if count > MOST_LINES} == {}


def test_the_operator_is_short():
    assert (
        sum(file.read_text(encoding="utf-8").count("\n") for file in (ROOT / "operator").rglob("*.py"))
        <= OPERATORS_LINES
    )
