"""Marks in a copy of the tree: every function of an entry tells that it was called, in whichever process."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable
from pathlib import Path

from tests.without.entries import Entry

VARIABLE = "UNMASK_USES"  # where processes that a test starts write what they use


class Used:
    """What this process used since it was last asked, and what those that it started did."""

    def __init__(self) -> None:
        self.here: set[str] | None = None  # None: another process asks, by the file
        self.read = 0

    def listen(self, path: Path) -> None:
        path.touch()
        os.environ[VARIABLE] = str(path)
        self.here = set()

    def take(self) -> set[str]:
        assert self.here is not None
        with open(os.environ[VARIABLE], encoding="utf-8") as file:
            file.seek(self.read)
            text = file.read()
        complete = text[: text.rfind("\n") + 1]
        self.read += len(complete)
        found = self.here | set(complete.split())
        self.here.clear()
        return found


USED = Used()


def used(entry: str) -> None:
    if USED.here is not None:
        USED.here.add(entry)
    elif path := os.environ.get(VARIABLE):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{entry}\n")


class _Marks(ast.NodeTransformer):
    """Has each function below tell first; but not how a family is recognized, for which all of them are asked."""

    def __init__(self, entry: str, asked_of_all: set[str]) -> None:
        self.entry, self.asked_of_all = entry, asked_of_all

    def call(self) -> ast.expr:
        return ast.parse(f"used({self.entry!r})", mode="eval").body

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        return node if node.arg == "detect" else self.generic_visit(node)  # type: ignore[return-value]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if node.name not in self.asked_of_all:
            self.generic_visit(node)
            node.body.insert(0 if ast.get_docstring(node) is None else 1, ast.Expr(self.call()))
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        self.generic_visit(node)
        node.body = ast.BoolOp(ast.Or(), [self.call(), node.body])
        return node


def _mark(path: Path, entry: str, lines: dict[str, str] | None = None) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    asked = {
        node.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "detect" and isinstance(node.value, ast.Name)
    }
    tree = ast.fix_missing_locations(_Marks(entry, asked).visit(tree))
    _write(path, tree)


def _write(path: Path, tree: ast.Module) -> None:
    after = [
        i
        for i, node in enumerate(tree.body)
        if (isinstance(node, ast.ImportFrom) and node.module == "__future__")
        or (i == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    tree.body.insert(max(after, default=-1) + 1, ast.parse("from tests.without.marks import used").body[0])
    path.write_text(ast.unparse(tree) + "\n", encoding="utf-8")


# Who is asked for one by name, and how it is known which: its functions may all stand in a file that is no entry.
_LOOKUPS = {
    "models": ("resolve_family", "used('models.' + found.key)"),
    "strategies": ("make_strategy", "used('strategies.' + key)"),
}


class _Lookup(ast.NodeTransformer):
    """Has a function tell what it returns."""

    def __init__(self, function: str, call: str) -> None:
        self.function, self.call = function, call

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if node.name == self.function:
            self.generic_visit(node)
        return node

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        return [
            *ast.parse("given = None").body[:0],
            ast.Assign([ast.Name("found_", ast.Store())], node.value or ast.Constant(None)),
            *ast.parse(self.call.replace("found.", "found_.")).body,
            ast.Return(ast.Name("found_", ast.Load())),
        ]


def mark(root: Path, entries: Iterable[Entry]) -> None:
    for entry in entries:
        _mark(entry.file(root), str(entry))
    for package, (function, call) in _LOOKUPS.items():
        path = root / "runtime" / package / "base.py"
        tree = ast.fix_missing_locations(_Lookup(function, call).visit(ast.parse(path.read_text(encoding="utf-8"))))
        _write(path, tree)
