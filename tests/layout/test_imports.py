"""Who imports whom: modules in no circle, packages only from those above them in docs/architecture.md's table."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNS = ("module", "function")  # when the module is imported, or a function called
TYPING = "typing"  # never: under TYPE_CHECKING


def modules() -> dict[str, Path]:
    """The runtime's modules by their names; a package is its ``__init__``."""
    names = {}
    for path in (ROOT / "runtime").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imports(tree: ast.AST, when: str = "module") -> Iterator[tuple[str, str, str]]:
    """Every import below `tree`: the module that is named, the name taken from it ("" for none), and when it runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "", when) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from ((node.module or "", alias.name, when) for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from imports(ast.Module(node.body, []), TYPING)
            yield from imports(ast.Module(node.orelse, []), when)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and when == "module":
            yield from imports(node, "function")
        else:
            yield from imports(node, when)


def graph(*when: str) -> dict[str, set[str]]:
    """Module -> the modules of the runtime that it imports at those times."""
    known = modules()
    found: dict[str, set[str]] = {}
    for name, path in known.items():
        every = imports(ast.parse(path.read_text(encoding="utf-8")))
        wanted = {f"{m}.{n}" if f"{m}.{n}" in known else m for m, n, at in every if at in when}
        found[name] = wanted & known.keys() - {name}
    return found


def order() -> list[str]:
    """The table's packages and modules, as Python names them, from its top."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.split("## The house")[1].split("\n## ")[0].splitlines() if "|" in line]
    paths = [path for row in rows for path in re.findall(r"`(runtime/[\w/.]+)`", row)]
    return [path.removesuffix("__init__.py").removesuffix(".py").strip("/").replace("/", ".") for path in paths]


def home(module: str, packages: list[str]) -> str:
    """The package of the table that a module is of."""
    mine = [package for package in packages if module == package or module.startswith(f"{package}.")]
    return max(mine, key=len)


def test_modules_import_each_other_in_no_circle():
    try:
        TopologicalSorter(graph(*RUNS)).prepare()
    except CycleError as circle:
        pytest.fail(f"a circle: {' -> '.join(circle.args[1])}")


def test_every_module_is_in_the_table():
    packages = order()
    assert len(packages) == len(set(packages))
    for module in modules():
        assert module == "runtime" or home(module, packages) != "runtime", f"{module} is of no row"
    for package in packages:
        assert package in modules(), f"{package} is not there"


def test_packages_import_only_those_above_them():
    packages = order()
    wrong = [
        f"{module} -> {other}"
        for module, others in graph(*RUNS, TYPING).items()
        for other in others
        if packages.index(home(other, packages)) > packages.index(home(module, packages))
    ]
    assert wrong == []


def test_a_circle_would_be_found():
    assert list(imports(ast.parse("from a import b\nif TYPE_CHECKING:\n    import c\ndef f():\n    import d"))) == [
        ("a", "b", "module"),
        ("c", "", "typing"),
        ("d", "", "function"),
    ]
