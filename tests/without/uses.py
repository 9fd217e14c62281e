"""Records of the entries that each test uses, from one run of all tests.

A later run without an entry needs to execute only the tests that use it.
"""

import ast
import inspect
import json
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.without.entries import Entry, named

# Tests that read the whole registry without calling the entries' functions.
READ_BY_NAME = (
    "tests/without/", "tests/test_docs.py", "tests/test_extending.py", "tests/config/", "tests/request/",
    "tests/server/test_openapi.py", "tests/operator/test_flags.py",
)  # fmt: skip


class Test(NamedTuple):
    """The record of a test that ran with all entries."""

    __test__ = False  # pytest does not collect this class

    id: str
    fixtures: tuple[str, ...]
    all_entries: bool  # has the marker `all_entries`
    uses: frozenset[str]  # entries that the test, its fixtures or its child processes called
    says: frozenset[str]  # names of entries in the strings of its source

    def line(self) -> str:
        return json.dumps([self.id, self.fixtures, self.all_entries, sorted(self.uses), sorted(self.says)]) + "\n"

    def own(self, gone: Iterable[Entry], names: Iterable[str]) -> bool:
        """Returns whether the test belongs to those entries, so that it may fail without them."""
        return self.all_entries or bool(
            named(" ".join([self.id, *self.fixtures]), names) & {entry.name for entry in gone}
        )

    def concerned(self, gone: Iterable[Entry]) -> bool:
        """Returns whether the removal of those entries could change the result of the test."""
        is_named = any(str(entry) in self.uses or entry.name in self.says for entry in gone)
        return is_named or self.id.startswith(READ_BY_NAME)


def spoken(function: Callable[..., Any], names: Iterable[str]) -> set[str]:
    """Returns those of `names` that occur in the strings of a function's source, except its docstring."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return named(" ".join(text for text in strings if inspect.cleandoc(text) != function.__doc__), names)


def read_uses(path: Path) -> list[Test]:
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        id, fixtures, all_entries, uses, says = json.loads(line)
        found.append(Test(id, tuple(fixtures), all_entries, frozenset(uses), frozenset(says)))
    return found
