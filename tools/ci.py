"""Runs the parts of CI in order, and repeats failed tests that depend on other processes.

`python3 -m tools.ci` runs all parts, `python3 -m tools.ci test docs` those. A part is a target of the Makefile. The
first part that fails ends the run. The last lines are a table with the time of each part, and a table `FLAKY`.

A test that starts servers, a cluster or a browser can fail for a reason outside the code. In the parts that have such
tests, a second run of pytest repeats the failed ones, in a new process, without workers and without other tests. If
they pass, CI continues, and `FLAKY` lists them with their first failure. The next change has to remove the cause.
Nothing is repeated if pytest did not end with exit code 1, if more than MAX_REPEATED tests failed, or if one of them
has none of the MARKERS.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
# part -> whether its failed tests can be repeated
PARTS: Mapping[str, bool] = {"docs": False, "test": False, "test-rest": True, "browser-test": True, "e2e-smoke": True}
MARKERS = frozenset({"cluster", "programs", "node", "browser", "processes"})
MAX_REPEATED = 5
FAILED = 1  # exit code of pytest if tests failed


@dataclass(frozen=True)
class FailedTest:
    """A test that failed.

    Attributes:
        id: node id of pytest.
        markers: its keywords, which contain the names of its markers.
        report: traceback of the first failure.
    """

    id: str
    markers: Sequence[str]
    report: str


def run(parts: Sequence[str], root: Path = ROOT) -> int:
    """Runs parts, and prints the tables.

    Returns:
        0 if all parts passed, else the exit code of the part that failed.
    """
    times: list[str] = []
    flaky: list[FailedTest] = []
    try:
        for part in parts:
            start = time.monotonic()
            code = _run_part(part, root, flaky)
            times.append(f"make {part}: {time.monotonic() - start:.0f} s")
            if code:
                return code
        return 0
    finally:
        print("\n".join(times))
        if flaky:
            print("\nFLAKY: these tests failed, and passed when they were repeated")
            for test in flaky:
                print(f"\n{test.id}\n{test.report}")
        sys.stdout.flush()


def _run_part(part: str, root: Path, flaky: list[FailedTest]) -> int:
    """Runs a part, and its failed tests again if that is allowed. Appends those that passed then to `flaky`."""
    options = ["--durations=10"]
    if not PARTS[part]:
        return _make(part, root, options)
    folder = f"build/ci/{part}"
    failures = f"{folder}/failures.json"
    (root / failures).unlink(missing_ok=True)
    # The cache has the failed tests of this part only.
    options += ["-o", f"cache_dir={folder}/cache", "-p", "tests.failures", "--failures", failures]
    code = _make(part, root, options)
    if code == 0 or not (root / failures).exists():
        return code
    repeatable = read_repeatable(root / failures)
    if not repeatable:
        return code
    print(f"\nrepeating {len(repeatable)} failed tests of make {part}", flush=True)
    again = _make(part, root, [*options, "-n", "0", "--last-failed", "--last-failed-no-failures", "none"])
    if again == 0:
        flaky += repeatable
    return again


def read_repeatable(failures: Path) -> list[FailedTest]:
    """Returns the failed tests that `tests/failures.py` wrote; none if they must not be repeated."""
    content = json.loads(failures.read_text(encoding="utf-8"))
    tests = [FailedTest(**test) for test in content["tests"]]
    allowed = all(MARKERS.intersection(test.markers) for test in tests)
    return tests if content["exit_code"] == FAILED and allowed and len(tests) <= MAX_REPEATED else []


def _make(part: str, root: Path, options: Sequence[str]) -> int:
    return subprocess.run(["make", part, f"ARGS={' '.join(options)}"], cwd=root, check=False).returncode


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the named parts, or all."""
    parser = argparse.ArgumentParser(prog="tools.ci", description="run the parts of CI")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; default: all")
    parts = parser.parse_args(argv).parts
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; use one of {', '.join(PARTS)}")
    return run(parts or list(PARTS))


if __name__ == "__main__":
    sys.exit(main())
