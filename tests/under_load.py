"""Runs the CPU tests beside busy loops, to find tests that depend on how fast the machine is.

``python -m tests.under_load`` runs every slice of the suite once. A slice is a large directory of tests, or all smaller
ones together. Results are appended to a log. A slice that passed at this commit is skipped, so one pass can be spread
over several runs. ``--repeat 20 tests/server/test_api.py`` runs some tests many times instead.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOG = ROOT / "build" / "under-load.jsonl"
LARGE = ("tests/operator", "tests/server", "tests/engine", "tests/models", "tests/kernels")
CPU_TESTS = "not gpu and not gpu2 and not node and not browser and not clients and not slow"
CPUS = 2
BUSY_LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(10_000))"


@dataclass(frozen=True)
class Result:
    """One slice of one pass, as the log has it.

    Attributes:
        number: Number of the pass, from 1.
        loops: Busy loops that ran beside the tests.
        repeated: Whether it is a run of `--repeat`, which is no part of a pass.
        summary: Last line of pytest.
    """

    commit: str
    passed_all: bool
    number: int
    paths: list[str]
    loops: int
    repeated: bool
    seconds: float
    summary: str
    failures: list[str]


def slices() -> list[list[str]]:
    """Returns the paths of each slice: the large directories, and all other tests."""
    tests = ROOT / "tests"
    found = {f"tests/{path.relative_to(tests).parts[0]}" for path in tests.rglob("test_*.py")}
    return [*([path] for path in LARGE), sorted(found.difference(LARGE))]


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keeps `count` processes busy on the processors that this process may use."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run(commit: str, paths: list[str], number: int, loops: int, repeated: bool) -> Result:
    """Runs the CPU tests below `paths` once and prints the output if one fails, or if there are none."""
    command = [sys.executable, "-m", "pytest", "-n", "3", "--dist", "worksteal", "-m", CPU_TESTS, "-rfE", *paths]
    start = time.monotonic()
    with busy_loops(loops):
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    failures = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode != 0:
        print(done.stdout)
    summary = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    seconds = round(time.monotonic() - start, 1)
    return Result(commit, done.returncode == 0, number, paths, loops, repeated, seconds, summary, failures)


def current_commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def read_log(log: Path) -> list[Result]:
    if not log.exists():
        return []
    return [Result(**json.loads(row)) for row in log.read_text(encoding="utf-8").splitlines()]


def append(log: Path, result: Result) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")
    state = "passed" if result.passed_all else "FAILED"
    print(
        f"{state} pass {result.number} {' '.join(result.paths)}: {result.summary} ({result.seconds:.0f} s)", flush=True
    )


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.under_load", description=__doc__)
    parser.add_argument(
        "path", nargs="*", help="directories, test files or ids of tests; without one, all slices of the suite"
    )
    parser.add_argument("--passes", type=int, default=1, metavar="N", help="runs of each slice (%(default)s)")
    parser.add_argument("--repeat", type=int, metavar="N", help="run the given paths N times, whatever the log has")
    parser.add_argument("--loops", type=int, default=4, metavar="N", help="busy loops beside the tests (%(default)s)")
    parser.add_argument(
        "--log", type=Path, default=LOG, metavar="FILE", help="where results are appended (%(default)s)"
    )
    options = parser.parse_args()
    if options.repeat and not options.path:
        parser.error("--repeat: name the directories, test files or tests to repeat")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CPUS])
    chosen = [[path] for path in options.path] or slices()
    commit = current_commit()
    # A dirty tree has the same name whatever it contains.
    known = [] if options.repeat or commit.endswith("-dirty") else read_log(options.log)
    known = [result for result in known if (result.commit, result.loops) == (commit, options.loops)]
    done = {(result.number, *result.paths) for result in known if result.passed_all and not result.repeated}
    failed = 0
    for number in range(1, (options.repeat or options.passes) + 1):
        for paths in chosen:
            if (number, *paths) in done:
                print(f"skipped pass {number} {' '.join(paths)}: it passed at {commit}")
            else:
                result = run(commit, paths, number, options.loops, bool(options.repeat))
                append(options.log, result)
                failed += not result.passed_all
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
