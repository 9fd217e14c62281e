"""Counts lines of code per package, without docstrings, comments and blank lines.

`python -m tools.lines` prints a table, `python -m tools.lines --json` the same as JSON.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("runtime", "training", "operator", "tools", "tests", "e2e")
# Parts of runtime/ that `core` leaves out: the front ends, and code that does not serve requests.
NOT_CORE = {"server", "bench", "demo", "chat.py", "cli.py", "client.py"}


@dataclass(frozen=True)
class Size:
    """Size of a group of files.

    Attributes:
        files: number of Python files.
        lines: all their lines.
        code: lines without docstrings, comments and blank lines.
    """

    files: int = 0
    lines: int = 0
    code: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.files + other.files, self.lines + other.lines, self.code + other.code)


def code_lines(source: str) -> int:
    """Returns the number of lines of code in the source of a Python file.

    A line in a string that is no docstring is code unless it is blank.
    """
    docstrings: set[int] = set()
    strings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstrings.update(_docstring_lines(node))
        elif isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno is not None:
            strings.update(range(node.lineno + 1, node.end_lineno + 1))
    return sum(
        bool(line.strip()) and number not in docstrings and (number in strings or not line.lstrip().startswith("#"))
        for number, line in enumerate(source.split("\n"), start=1)
    )


def _docstring_lines(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> range:
    match node.body:
        case [ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=int(last)), *_]:
            return range(first, last + 1)
    return range(0)


def measure(file: Path) -> Size:
    source = file.read_text(encoding="utf-8")
    return Size(1, source.count("\n"), code_lines(source))


def packages(root: Path) -> dict[str, Size]:
    """Returns the size of each package: folders of the runtime, its single files, and the other top folders."""
    sizes: dict[str, Size] = {}
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            parts = file.relative_to(root).parts
            package = "/".join(parts[:2]) if folder == "runtime" else folder
            sizes[package] = sizes.get(package, Size()) + measure(file)
    return sizes


def totals(sizes: Mapping[str, Size]) -> dict[str, Size]:
    """Returns the sizes of `core`, of runtime/ and of everything."""
    runtime = {name.partition("/")[2]: size for name, size in sizes.items() if name.startswith("runtime/")}
    core = (size for name, size in runtime.items() if name not in NOT_CORE)
    return {"core": sum(core, Size()), "runtime": sum(runtime.values(), Size()), "all": sum(sizes.values(), Size())}


def rows(sizes: Mapping[str, Size]) -> Iterator[str]:
    width = max(map(len, sizes), default=0)
    yield f"{'package':{width}} {'files':>6} {'lines':>8} {'code':>8}"
    for name, size in sizes.items():
        yield f"{name:{width}} {size.files:6,} {size.lines:8,} {size.code:8,}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.lines", description="Counts lines of code per package.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    sizes = packages(ROOT)
    if options.json:
        groups = {"packages": sizes, "totals": totals(sizes)}
        print(json.dumps({group: {name: asdict(size) for name, size in of.items()} for group, of in groups.items()}))
    else:
        print("\n".join(rows(sizes | totals(sizes))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
