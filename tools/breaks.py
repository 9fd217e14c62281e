"""Breaks the code at random places, and counts the breaks that the tests of the area detect.

    python -m tools.breaks choose --seed 1 > breaks.json
    python -m tools.breaks run breaks.json --jobs 2 --out before.jsonl

A break negates a condition, adds one to a number, or drops a call. `choose` draws them by a seed. `run` applies each of
them to a copy of the tree, and runs the tests of its area until one fails. A break names its function, not a line.
So the same breaks are run before and after a change of the tests, also if modules moved. If the function of a break has
changed, the next one that was drawn for its area takes its place.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# area -> folders of its code, folders of its tests. Folders that do not exist are ignored.
AREAS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "operator": (["operator/unmask_operator"], ["tests/operator"]),
    "server": (["runtime/server"], ["tests/server"]),
    "structured_output": (["runtime/structured_output"], ["tests/structured_output"]),
    "models": (["runtime/models"], ["tests/models"]),
    "engine": (["runtime/engine", "runtime/scheduling"], ["tests/engine", "tests/scheduling"]),
    "weights": (["runtime/weights", "runtime/quantization"], ["tests/weights", "tests/quantization"]),
}
OTHER_MACHINES = ("gpu", "gpu2", "node", "browser", "clients", "cluster", "programs", "slow")
SELECTED = " and ".join(f"not {marker}" for marker in OTHER_MACHINES)
LIMIT = 1200  # seconds for the tests of one break
LOGGERS = {"log", "logger", "logging"}


@dataclass(frozen=True)
class Break:
    """A change of one expression or statement of a function.

    Attributes:
        area: key of AREAS.
        kind: `negate`, `add one` or `drop`.
        function: qualified name of the function or method, without the module.
        source: source of the function without comments.
        index: number of the place among those of this function.
    """

    area: str
    kind: str
    function: str
    source: str
    index: int


@dataclass(frozen=True)
class Place:
    """A node that can be broken, in a file."""

    kind: str
    node: ast.expr | ast.stmt

    def apply(self, text: str) -> str:
        """Returns the text of the file with the break."""
        lines = text.encode().split(b"\n")
        assert self.node.end_lineno is not None
        first, last = self.node.lineno - 1, self.node.end_lineno - 1
        before = b"\n".join([*lines[:first], lines[first][: self.node.col_offset]])
        after = b"\n".join([lines[last][self.node.end_col_offset :], *lines[last + 1 :]])
        old = ast.unparse(self.node)
        new = {"negate": f"(not ({old}))", "add one": f"({old} + 1)", "drop": "pass"}[self.kind]
        return (before + new.encode() + after).decode()


def places(function: ast.AST) -> Iterator[Place]:
    """Yields the places of a function, without those of nested functions and of patterns, in source order."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.pattern):
            continue
        if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
            yield Place("negate", node.test)
        elif isinstance(node, ast.comprehension):
            yield from (Place("negate", test) for test in node.ifs)
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield Place("add one", node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not _logs(node.value):
            yield Place("drop", node)
        if not isinstance(node, ast.JoinedStr):  # Python 3.11 has no positions in f-strings
            yield from places(node)


def _logs(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Name(id=name)):
            return name in LOGGERS
    return False


def functions(folder: Path) -> Iterator[tuple[Path, str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yields file, qualified name and tree of all functions of the Python files below a folder."""

    def inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + child.name, child
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from inside(child, f"{prefix}{child.name}.")
            else:
                yield from inside(child, prefix)

    for path in sorted(folder.rglob("*.py")):
        for name, function in inside(ast.parse(path.read_text(encoding="utf-8")), ""):
            yield path, name, function


def choose(root: Path, seed: int, count: int) -> list[Break]:
    """Returns three times `count` breaks per area, in the order in which they are tried."""
    drawn = []
    for area, (folders, _) in AREAS.items():
        every = [
            Break(area, place.kind, name, ast.unparse(function), index)
            for folder in folders
            for _, name, function in functions(root / folder)
            for index, place in enumerate(places(function))
        ]
        every.sort(key=lambda one: (one.function, one.source, one.index))  # files may move
        drawn += random.Random(f"{seed} {area}").sample(every, min(len(every), 3 * count))
    return drawn


def index(root: Path) -> dict[tuple[str, str], tuple[Path, ast.AST]]:
    """Returns file and tree of each function below `root` by its qualified name and source; the first of equal ones."""
    found: dict[tuple[str, str], tuple[Path, ast.AST]] = {}
    for top in ("runtime", "operator"):
        for path, name, function in functions(root / top):
            found.setdefault((name, ast.unparse(function)), (path, function))
    return found


def run_tests(root: Path, area: str, options: Sequence[str], broken: tuple[Path, Place] | None = None) -> str | None:
    """Runs the tests of an area in a copy of `root`, with a break in a file below `root`, until one fails.

    Returns:
        the id of the failed test, or what else ended the run; None if all passed.
    """
    with tempfile.TemporaryDirectory(prefix="breaks-") as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(
            root, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", "build", "__pycache__")
        )
        module = None
        if broken:
            path, place = broken
            module = copy / path.relative_to(root)
            module.write_text(place.apply(module.read_text(encoding="utf-8")), encoding="utf-8")
        tests = [test for test in AREAS[area][1] if (copy / test).exists()]
        files = _nearest_first(copy, tests, module)
        command = [sys.executable, "-m", "pytest", *files, "-x", "-m", SELECTED, "-p", "no:cacheprovider", *options]
        paths = {"PYTHONPATH": f"{copy / 'operator'}:{copy}", "PYTHONDONTWRITEBYTECODE": "1"}
        with open(Path(folder) / "output", "w+", encoding="utf-8") as output:
            process = subprocess.Popen(
                command,
                cwd=copy,
                env=os.environ | {"OMP_NUM_THREADS": "1"} | paths,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                return "no end"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # servers that the tests left behind too
                process.wait()
            output.seek(0)
            text = output.read()
    if process.returncode == 0:
        return None
    if process.returncode not in (1, 2):
        raise RuntimeError(f"pytest ended with {process.returncode}: {text[-2000:]}")
    failed = [line.partition(" - ")[0] for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0] if failed else "collection"


def _nearest_first(root: Path, folders: Sequence[str], module: Path | None) -> list[str]:
    """Returns the test files of the folders; first those whose name or content names the broken module."""

    def distance(file: Path) -> tuple[bool, bool, str]:
        if module is None:
            return False, False, str(file)
        imported = f"{module.parent.name}.{module.stem}" in file.read_text(encoding="utf-8")
        return module.stem not in file.stem, not imported, str(file)

    files = [file for folder in folders for file in (root / folder).rglob("test_*.py")]
    return [str(file.relative_to(root)) for file in sorted(files, key=distance)]


def run(root: Path, breaks: Sequence[Break], count: int, jobs: int, out: Path, options: Sequence[str]) -> None:
    """Runs the first `count` breaks of each area whose function is below `root`, except those that `out` already has.

    First runs the tests of each area without a break. Raises RuntimeError if one fails.

    Appends an object per line to `out`: the break, its `place`, whether it was `caught`, and the `test` that failed.
    """
    known = [row["break"] for row in read_rows(out)]
    unchanged = index(root)
    left = dict.fromkeys(AREAS, count)
    chosen: list[tuple[Break, Path, Place]] = []
    for one in breaks:
        if left[one.area] and (where := unchanged.get((one.function, one.source))):
            left[one.area] -= 1
            if asdict(one) not in known:
                path, function = where
                chosen.append((one, path, list(places(function))[one.index]))

    def check(area: str) -> None:
        if failed := run_tests(root, area, options):
            raise RuntimeError(f"the tests of {area} fail without a break: {failed}; leave it out with --pytest")

    def work(item: tuple[Break, Path, Place]) -> None:
        one, path, place = item
        start = time.monotonic()
        failed = run_tests(root, one.area, options, (path, place))
        where = f"{path.relative_to(root)}:{place.node.lineno}"
        print(f"{time.monotonic() - start:5.0f} s  {where} {one.kind}: {failed or 'NOT CAUGHT'}", flush=True)
        with out.open("a", encoding="utf-8") as file:
            file.write(
                json.dumps({"break": asdict(one), "place": where, "caught": bool(failed), "test": failed}) + "\n"
            )

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(check, dict.fromkeys(one.area for one, _, _ in chosen)))
        list(pool.map(work, chosen))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the objects that `run` wrote; none if the file does not exist."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command, and prints the number of caught breaks per area."""
    parser = argparse.ArgumentParser(prog="tools.breaks", description="break the code, and count what the tests detect")
    commands = parser.add_subparsers(dest="command", required=True)
    choosing = commands.add_parser("choose", help="print breaks as JSON")
    choosing.add_argument("--seed", type=int, default=0, help="seed of the draw")
    running = commands.add_parser("run", help="run the tests with each break")
    running.add_argument("breaks", type=Path, help="file that `choose` printed")
    running.add_argument("--jobs", type=int, default=1, help="tests that run at once")
    running.add_argument("--out", type=Path, required=True, help="file for the results; continues if it exists")
    running.add_argument("--pytest", action="append", default=[], metavar="OPTION", help="further option of pytest")
    for command in (choosing, running):
        command.add_argument("--root", type=Path, default=ROOT, help="tree whose code is broken")
        command.add_argument("--count", type=int, default=10, help="breaks per area")
    arguments = parser.parse_args(argv)
    root = arguments.root.resolve()
    if arguments.command == "choose":
        print(json.dumps([asdict(one) for one in choose(root, arguments.seed, arguments.count)], indent=1))
        return 0
    breaks = [Break(**one) for one in json.loads(arguments.breaks.read_text(encoding="utf-8"))]
    run(root, breaks, arguments.count, arguments.jobs, arguments.out, arguments.pytest)
    rows = read_rows(arguments.out)
    for area in AREAS:
        caught = [row["caught"] for row in rows if row["break"]["area"] == area]
        print(f"{area:20}{sum(caught):4} of {len(caught)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
