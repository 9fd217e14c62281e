"""Runs the CPU tests next to busy loops, to find tests that depend on the speed of the machine.

``python -m tests.under_load`` runs every slice of the suite once, on two processors. A slice has at most 12 files of
one directory, or of several small directories. Results are appended to a log. A slice that passed at this commit is
skipped, so one pass can be spread over several runs. ``--jobs 8`` runs eight slices at once, of one or several passes,
each on its own two processors. The slices that took longest in the log run first.
``--repeat 20 tests/server/test_api.py`` runs the given tests many times instead.
"""

import argparse
import contextlib
import json
import math
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOG = ROOT / "build" / "under-load.jsonl"
SLICE_FILES = 12
CPU_TESTS = "not gpu and not gpu2 and not node and not browser and not clients and not slow"
CPUS = 2
BUSY_LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(10_000))"


@dataclass(frozen=True)
class Result:
    """The result of one slice of one pass, an entry of the log."""

    commit: str
    passed_all: bool
    number: int  # of the pass, from 1
    paths: list[str]
    loops: int  # busy loops that ran next to the tests
    repeated: bool  # a run of `--repeat`, which does not count as part of a pass
    seconds: float
    summary: str  # last line of pytest's output
    failures: list[str]


def slices() -> list[list[str]]:
    """Returns the files of each slice: at most `SLICE_FILES` of one directory, or of the directories with few files."""
    tests = ROOT / "tests"
    directories: dict[str, list[str]] = {}
    for path in sorted(tests.rglob("test_*.py")):
        directories.setdefault(path.relative_to(tests).parts[0], []).append(str(path.relative_to(ROOT)))
    groups = [paths for paths in directories.values() if len(paths) > SLICE_FILES // 2]
    groups.append([path for paths in directories.values() if len(paths) <= SLICE_FILES // 2 for path in paths])
    result: list[list[str]] = []
    for paths in sorted(groups, key=len, reverse=True):
        count = math.ceil(len(paths) / SLICE_FILES)
        result.extend(paths[number::count] for number in range(count))
    return result


def title(paths: list[str]) -> str:
    """Returns a short name of a slice for messages."""
    directories = sorted({"/".join(path.split("/")[:2]) for path in paths})
    return paths[0] if len(paths) == 1 else f"{len(paths)} files of {', '.join(directories)}"


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
    """Runs the CPU tests below `paths` once. Prints the output if a test fails or if there are no tests."""
    command = [sys.executable, "-m", "pytest", "-n", "3", "--dist", "worksteal", "-m", CPU_TESTS, "-rfE"]
    start = time.monotonic()
    # Runs that start at the same time would compete for the next number of pytest's usual directory.
    with busy_loops(loops), tempfile.TemporaryDirectory(prefix="load-", ignore_cleanup_errors=True) as directory:
        command += [f"--basetemp={directory}/t", *paths]
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


def seconds_per_file(results: list[Result]) -> dict[str, float]:
    """Returns the mean time of a path in the latest run that contained it."""
    return {path: result.seconds / len(result.paths) for result in results for path in result.paths}


def append(log: Path, result: Result) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")
    state = "passed" if result.passed_all else "FAILED"
    print(f"{state} pass {result.number} {title(result.paths)}: {result.summary} ({result.seconds:.0f} s)", flush=True)


def run_all(runs: list[tuple[int, list[str]]], log: Path, commit: str, loops: int, repeated: bool, jobs: int) -> int:
    """Runs each (number, paths), `jobs` at once, and returns how many failed.

    Each run has `CPUS` processors for its tests and its busy loops.
    """
    processors = sorted(os.sched_getaffinity(0))
    pairs: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    for number in range(jobs):
        pairs.put(processors[number * CPUS : (number + 1) * CPUS])
    lock = threading.Lock()

    def run_one(number: int, paths: list[str]) -> bool:
        pair = pairs.get()
        os.sched_setaffinity(0, pair)  # for this thread; its child processes inherit it
        try:
            result = run(commit, paths, number, loops, repeated)
        finally:
            pairs.put(pair)
        with lock:
            append(log, result)
        return result.passed_all

    with ThreadPoolExecutor(jobs) as pool:
        return sum(not passed for passed in pool.map(run_one, *zip(*runs, strict=True))) if runs else 0


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.under_load", description=__doc__)
    parser.add_argument(
        "path", nargs="*", help="directories, test files or ids of tests; without one, all slices of the suite"
    )
    parser.add_argument("--passes", type=int, default=1, metavar="N", help="runs of each slice (%(default)s)")
    parser.add_argument("--repeat", type=int, metavar="N", help="run the given paths N times, whatever the log has")
    parser.add_argument("--loops", type=int, default=4, metavar="N", help="busy loops beside the tests (%(default)s)")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="slices at once, each on two processors (%(default)s)"
    )
    parser.add_argument(
        "--log", type=Path, default=LOG, metavar="FILE", help="where results are appended (%(default)s)"
    )
    options = parser.parse_args()
    if options.repeat and not options.path:
        parser.error("--repeat: name the directories, test files or tests to repeat")
    max_jobs = max(1, len(os.sched_getaffinity(0)) // CPUS)
    if not 1 <= options.jobs <= max_jobs:
        parser.error(f"--jobs: this machine has processors for 1 to {max_jobs}")
    chosen = [[path] for path in options.path] or slices()
    commit = current_commit()
    results = read_log(options.log)
    # The name of a dirty tree does not depend on its changes.
    known = [] if options.repeat or commit.endswith("-dirty") else results
    known = [result for result in known if (result.commit, result.loops) == (commit, options.loops)]
    done = {(result.number, *result.paths) for result in known if result.passed_all and not result.repeated}
    numbers = range(1, (options.repeat or options.passes) + 1)
    runs = [(number, paths) for number in numbers for paths in chosen if (number, *paths) not in done]
    times = seconds_per_file(results)
    # The longest run first, so that no long one runs alone at the end. A path without a time may be long.
    runs.sort(key=lambda item: sum(times.get(path, math.inf) for path in item[1]), reverse=True)
    if skipped := len(numbers) * len(chosen) - len(runs):
        print(f"skipped {skipped} slices that passed at {commit}", flush=True)
    failed = run_all(runs, options.log, commit, options.loops, bool(options.repeat), options.jobs)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
