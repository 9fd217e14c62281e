"""Which entries each test uses, from one run of all: so that to take one out only those tests need to run again."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.without.entries import Entry, named

# What tells of everything that is registered, and calls nothing of it.
READ_BY_NAME = (
    "tests/without/",
    "tests/test_docs.py",
    "tests/test_contributing.py",
    "tests/config/",
    "tests/request/",
    "tests/server/test_openapi.py",
    "tests/operator/test_flags.py",
)


class Test(NamedTuple):
    """A test as it ran with all entries."""

    __test__ = False  # to pytest

    id: str
    fixtures: tuple[str, ...]
    all_entries: bool  # marked so
    uses: frozenset[str]  # the entries that it called, or its fixtures, or a process that it started
    says: frozenset[str]  # the names of entries that stand in quotes in its source

    def line(self) -> str:
        return json.dumps([self.id, self.fixtures, self.all_entries, sorted(self.uses), sorted(self.says)]) + "\n"

    def own(self, gone: Iterable[Entry], names: Iterable[str]) -> bool:
        """Whether it may fail without those entries."""
        return self.all_entries or bool(
            named(" ".join([self.id, *self.fixtures]), names) & {entry.name for entry in gone}
        )

    def concerned(self, gone: Iterable[Entry]) -> bool:
        """Whether it could fail without those entries."""
        is_named = any(str(entry) in self.uses or entry.name in self.says for entry in gone)
        return is_named or self.id.startswith(READ_BY_NAME)


def spoken(function: Callable[..., Any], names: Iterable[str]) -> set[str]:
    """Which of `names` stand in quotes in a function's source, beside its docstring."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return named(" ".join(text for text in strings if inspect.cleandoc(text) != function.__doc__), names)


def read_uses(path: Path) -> list[Test]:
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        id, fixtures, all_entries, uses, says = json.loads(line)
        found.append(Test(id, tuple(fixtures), all_entries, frozenset(uses), frozenset(says)))
    return found
