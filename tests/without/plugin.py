"""pytest plugin that writes the ids of failed tests and of files with collection errors to a file.

It also deselects the tests whose ids another file lists.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failures", type=Path, help="where failed tests are written, a JSON line each")
    parser.addoption("--leave-out", type=Path, help="a file of the ids of tests that are collected and not run")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.failures and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(config.option.failures))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    path: Path | None = config.option.leave_out
    out = set(path.read_text(encoding="utf-8").splitlines()) if path else set()
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in out])
    items[:] = [item for item in items if item.nodeid not in out]
    for item in items:  # user properties are part of the report, so they reach the process that writes the file
        item.user_properties.append(("fixtures", list(getattr(item, "fixturenames", ()))))


class Failures:
    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        fixtures = dict(report.user_properties).get("fixtures", [])
        self.write_report(report, "all_entries" in report.keywords, fixtures)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.write_report(report, False, [])

    def write_report(
        self, report: pytest.TestReport | pytest.CollectReport, all_entries: bool, fixtures: Sequence[object]
    ) -> None:
        if report.failed:
            why = report.longreprtext.strip().splitlines() or [""]
            line = next((line for line in why if line.startswith("E ")), why[-1])
            with self.path.open("a", encoding="utf-8") as file:
                record = {
                    "test": report.nodeid, "all_entries": all_entries, "why": line[1:].strip(), "fixtures": fixtures,
                }  # fmt: skip
                file.write(json.dumps(record) + "\n")
