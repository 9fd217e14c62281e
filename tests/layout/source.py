"""Reads the source files of the repository for the checks in this package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = ("runtime", "training", "operator", "tools", "tests", "e2e")
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
MATCHED = (ast.MatchAs, ast.MatchStar, ast.MatchMapping)
BINDING = (ast.Name, ast.Attribute, ast.ClassDef, *FUNCTION, ast.arg, ast.alias, ast.ExceptHandler, *MATCHED)


@dataclass(frozen=True)
class Text:
    """A docstring or a block of comments.

    Attributes:
        line: number of its first line, from 1.
        text: its lines, without quotes and hashes.
    """

    line: int
    text: str


@dataclass(frozen=True)
class Module:
    """The content of one Python file that the checks use.

    Attributes:
        path: path from the root of the repository.
        bindings: (name, line) of each place that defines or assigns a name.
        docstrings: docstrings of the module, its classes and its functions.
    """

    path: str
    bindings: tuple[tuple[str, int], ...]
    docstrings: tuple[Text, ...]


def package_of(path: str) -> str:
    """Returns the name of the group that counts `path`: a package of the runtime, a top folder, or "root"."""
    folders = Path(path).parts[:-1]
    if not folders:
        return "root"
    return ".".join(folders[:2]) if folders[0] == "runtime" else folders[0]


@cache
def python_files() -> tuple[str, ...]:
    """Returns the paths of all Python files, relative to the root."""
    found = (path.relative_to(ROOT).as_posix() for folder in CODE for path in (ROOT / folder).rglob("*.py"))
    return tuple(sorted(found))


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def module(path: str) -> Module:
    """Parses one file. The syntax tree is not kept, because it takes many times the memory of its source."""
    return parse(path, read(path))


def parse(path: str, source: str) -> Module:
    """Reads bindings and docstrings of `source`, the content of the file `path`."""
    bindings = [(_module_name(path), 1)]
    docstrings: list[Text] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, BINDING):
            bindings.extend(_bound_by(node))
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTION)):
            docstrings.extend(_docstring(node))
    return Module(path, tuple(bindings), tuple(docstrings))


def _module_name(path: str) -> str:
    file = Path(path)
    return file.parent.name if file.name == "__init__.py" else file.stem


def _bound_by(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yields the names that `node` itself binds. An import counts only with `as`."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield name, node.lineno
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name, node.lineno
        case ast.arg(arg=name):
            yield name, node.lineno
        case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
            yield name, node.lineno
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            yield name, node.lineno


def _docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Text]:
    match node.body:
        case [ast.Expr(value=ast.Constant(value=str(text), lineno=line)), *_]:
            yield Text(line, text)
