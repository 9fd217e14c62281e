"""pytest plugin for a copy with instrumented entries. It writes the entries that each test used, as JSON lines."""

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.without.entries import entries
from tests.without.marks import USED
from tests.without.uses import Test, spoken

ROOT = Path(__file__).parents[2]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--uses", type=Path, help="where what tests use is written")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.uses:
        config.pluginmanager.register(Recorder(config.option.uses))


class Recorder:
    def __init__(self, path: Path) -> None:
        USED.listen(path.with_name(f"{path.name}-{os.getpid()}"))
        self.path = path
        self.names = {entry.name for entry in entries(ROOT)}
        self.collected: dict[str, set[str]] = {}  # node id -> entries used to collect it
        self.fixtures: dict[tuple[str, int], set[str]] = {}  # (fixture, index of its parameter) -> entries it used
        self.open: list[set[str]] = [set()]  # stack: the test's entries, then those of fixtures that are being set up

    def take(self) -> None:
        self.open[-1] |= USED.take()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, Any]:
        USED.take()
        report = yield
        self.collected[collector.nodeid] = USED.take()
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Generator[None, Any, Any]:
        """Records the entries that a fixture uses. They count for all tests that request it, not only for the first."""
        self.take()
        self.open.append(set())
        try:
            return (yield)
        finally:
            self.take()
            found = self.open.pop()
            self.open[-1] |= found
            if fixturedef.scope != "function":
                self.fixtures[fixturedef.argname, request.param_index] = found

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        USED.take()
        self.open = [set()]
        result = yield
        self.take()
        indices = item.callspec.indices if hasattr(item, "callspec") else {}
        names = tuple(getattr(item, "fixturenames", ()))
        uses = self.open[0].union(
            *(self.fixtures.get((name, indices.get(name, 0)), ()) for name in names),
            *(self.collected.get(node.nodeid, ()) for node in item.listchain()),
        )
        all_entries = item.get_closest_marker("all_entries") is not None
        says = spoken(item.function, self.names) if isinstance(item, pytest.Function) else set()
        with self.path.open("a", encoding="utf-8") as file:
            file.write(Test(item.nodeid, names, all_entries, frozenset(uses), frozenset(says)).line())
        return result
