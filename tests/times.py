"""Prints which tests and directories of a test run took longest: ``python -m tests.times REPORT.xml``.

The report is what ``pytest --junitxml`` writes. A test's time is that of its setup, call and teardown. The first test
that uses a session fixture therefore carries that fixture's time.
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

SLOWEST = 50


class Timing(NamedTuple):
    seconds: float
    module: str
    name: str

    @property
    def directory(self) -> str:
        """The directory below ``tests/``, or the module for tests at the top level."""
        return "/".join(self.module.split(".")[:2])


def read_report(path: Path) -> list[Timing]:
    """Returns the tests of a JUnit report, slowest first."""
    cases = ElementTree.parse(path).iter("testcase")
    times = (Timing(float(case.get("time", 0)), case.get("classname", ""), case.get("name", "")) for case in cases)
    return sorted(times, reverse=True)


def format_times(times: list[Timing]) -> str:
    """Returns the slowest tests, then the number of tests and the seconds per directory, as text."""
    directories: dict[str, list[float]] = defaultdict(list)
    for test in times:
        directories[test.directory].append(test.seconds)
    rows = [f"{test.seconds:8.2f} s  {test.module.replace('.', '/')}.py::{test.name}" for test in times[:SLOWEST]]
    rows += ["", f"{'seconds':>10}  {'tests':>6}  directory"]
    for directory, seconds in sorted(directories.items(), key=lambda item: -sum(item[1])):
        rows.append(f"{sum(seconds):10.1f}  {len(seconds):6}  {directory}")
    rows.append(f"{sum(test.seconds for test in times):10.1f}  {len(times):6}  total of all workers")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.times", description=__doc__)
    parser.add_argument("report", type=Path, help="file that pytest --junitxml wrote")
    report = parser.parse_args().report
    if not report.exists():
        sys.exit(f"{report}: not found; run pytest with --junitxml={report}")
    print(format_times(read_report(report)))


if __name__ == "__main__":
    main()
