"""Tests of tools/lines.py, which counts lines of code."""

import json

import pytest

from tools import lines
from tools.lines import Size, code_lines, packages, totals

SOURCE = '''\
"""A docstring

of three lines."""

# A comment.
import os  # 1


class Example:  # 2
    """A docstring."""

    text = """  # 3
# not a comment: 4

last: 5"""  # the blank line before it does not count

    def method(self):  # 6
        """A docstring
        of two lines."""
        "no docstring, but a string: 7"
        # A comment.
        return f"""{os.sep}
# in a formatted string: 9, after 8 before it
"""  # 10
'''


def test_a_file_counted_by_hand():
    assert code_lines(SOURCE) == 10
    assert code_lines("") == 0
    assert code_lines('"""Docstring."""\n') == 0


@pytest.fixture
def tree(tmp_path):
    for path in (
        "runtime/llm.py",
        "runtime/chat.py",
        "runtime/engine/engine.py",
        "runtime/engine/deep/scheduler.py",
        "runtime/server/app.py",
        "tests/engine/test_engine.py",
    ):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n\n")
    return tmp_path


def test_packages_and_totals(tree):
    sizes = packages(tree)
    assert {name: size.code for name, size in sizes.items()} == {
        "runtime/llm.py": 1, "runtime/chat.py": 1, "runtime/engine": 2, "runtime/server": 1, "tests": 1,
    }  # fmt: skip
    assert totals(sizes) == {"core": Size(3, 6, 3), "runtime": Size(5, 10, 5), "all": Size(6, 12, 6)}


def test_the_command_prints_a_table_or_json(tree, monkeypatch, capsys):
    monkeypatch.setattr(lines, "ROOT", tree)
    assert lines.main([]) == 0
    table = {row.split()[0]: row.split()[1:] for row in capsys.readouterr().out.splitlines()}
    assert table["runtime/engine"] == ["2", "4", "2"]
    assert table["core"] == ["3", "6", "3"]
    assert lines.main(["--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["packages"]["runtime/engine"] == {"files": 2, "lines": 4, "code": 2}
    assert document["totals"]["core"] == {"files": 3, "lines": 6, "code": 3}
