"""Reads the source files of the repository for the checks in this package."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = ("runtime", "training", "operator", "tools", "tests", "e2e")


@dataclass(frozen=True)
class Text:
    """A docstring or a block of comments, without quotes and hashes."""

    line: int  # the first, from 1
    text: str


@cache
def python_files() -> tuple[str, ...]:
    """Returns the paths of all Python files, relative to the root."""
    found = (path.relative_to(ROOT).as_posix() for folder in CODE for path in (ROOT / folder).rglob("*.py"))
    return tuple(sorted(found))


def read(path: str | Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def docstrings(source: str) -> Iterator[Text]:
    """Yields the docstrings of a module, its classes and its functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str(text), lineno=line)), *_]:
                    yield Text(line, text)
