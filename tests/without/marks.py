"""Instruments the entries in a copy of the tree: each function of an entry records its calls, in any process."""

import ast
import os
from collections.abc import Iterable
from pathlib import Path

from tests.without.entries import Entry

VARIABLE = "UNMASK_USES"  # file to which child processes of a test write the entries that they use


class Used:
    """The entries that this process and its child processes have used since the last `take`."""

    def __init__(self) -> None:
        self.here: set[str] | None = None  # None in a child process, which writes to the file instead
        self.read = 0

    def listen(self, path: Path) -> None:
        path.touch()
        os.environ[VARIABLE] = str(path)
        self.here = set()

    def take(self) -> set[str]:
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
    """Adds a call of `used` to the beginning of each function.

    Leaves out functions that detect a family, because each detection calls those of all families.
    """

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


def _mark(path: Path, entry: str) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    asked = {
        node.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "detect" and isinstance(node.value, ast.Name)
    }
    _write(path, _Marks(entry, asked).visit(tree))


def _write(path: Path, tree: ast.Module) -> None:
    after = [
        i
        for i, node in enumerate(tree.body)
        if (isinstance(node, ast.ImportFrom) and node.module == "__future__")
        or (i == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    tree.body.insert(max(after, default=-1) + 1, ast.parse("from tests.without.marks import used").body[0])
    path.write_text(ast.unparse(ast.fix_missing_locations(tree)) + "\n", encoding="utf-8")


# Functions that look up an entry by name, with the statement that records the result. They are needed for entries
# whose functions are all defined in other files.
_LOOKUPS = {
    "models": ("resolve_family", "used('models.' + found.key)"),
    "strategies": ("make_strategy", "used('strategies.' + key)"),
}


class _Lookup(ast.NodeTransformer):
    """Adds a call of `used` before each return of one function."""

    def __init__(self, function: str, call: str) -> None:
        self.function, self.call = function, call

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if node.name == self.function:
            self.generic_visit(node)
        return node

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        return [
            ast.Assign([ast.Name("found_", ast.Store())], node.value or ast.Constant(None)),
            *ast.parse(self.call.replace("found.", "found_.")).body,
            ast.Return(ast.Name("found_", ast.Load())),
        ]


def mark(root: Path, entries: Iterable[Entry]) -> None:
    for entry in entries:
        _mark(entry.file(root), str(entry))
    for package, (function, call) in _LOOKUPS.items():
        path = root / "runtime" / package / ("registry.py" if package == "strategies" else "base.py")
        _write(path, _Lookup(function, call).visit(ast.parse(path.read_text(encoding="utf-8"))))
