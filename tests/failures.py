"""pytest plugin that writes the failed tests of a session to a file: `-p tests.failures --failures FILE`.

`tools/ci.py` reads the file to decide whether the tests are repeated. It is JSON: `exit_code` of pytest, and `tests`, a
list of objects with `id`, `markers` and `report` of the first failure.
"""

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failures", type=Path, required=True, help="file for the failed tests, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a worker of xdist sends its reports to the controller
        config.pluginmanager.register(Failures(config.getoption("failures")))


class Failures:
    """Collects the first failure of each test by its id, and writes them to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tests: dict[str, dict[str, object]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.tests:
            entry = {"id": report.nodeid, "markers": sorted(report.keywords), "report": report.longreprtext}
            self.tests[report.nodeid] = entry

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"exit_code": int(exitstatus), "tests": [*self.tests.values()]}))
