"""Imports of the runtime and of the operator: modules in no circle, packages only from those above them.

The order is that of the table on the architecture page of each. Some packages have modules in several rows: a module
belongs to its own row if there is one, else to the row of its package.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNS = ("module", "function")  # when the module is imported, or a function called
TYPING = "typing"  # never: under TYPE_CHECKING
# What waits, writes or talks. The operator's core has none of it; its settings read the environment.
OUTSIDE = {
    "aiohttp",
    "asyncio",
    "kubernetes",
    "logging",
    "os",
    "prometheus_client",
    "socket",
    "subprocess",
    "time",
    "urllib",
}


@dataclass(frozen=True)
class House:
    """A package of the distribution, the folder it lies in, and the page with its table."""

    package: str
    folder: Path
    page: str

    def modules(self) -> dict[str, Path]:
        """Its modules by their names; a package is its ``__init__``."""
        names = {}
        for path in (self.folder / self.package).rglob("*.py"):
            parts = path.relative_to(self.folder).with_suffix("").parts
            names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        return names

    def graph(self, *when: str) -> dict[str, set[str]]:
        """Module -> the modules of the house that it imports at those times."""
        known = self.modules()
        found: dict[str, set[str]] = {}
        for name, path in known.items():
            every = imports_of(path)
            imported = {f"{m}.{n}" if f"{m}.{n}" in known else m for m, n, at in every if at in when}
            found[name] = imported & known.keys() - {name}
        return found

    def rows(self) -> list[list[str]]:
        """The table's packages and modules, as Python names them, from its top: those of each row."""
        page = (ROOT / "docs" / self.page).read_text(encoding="utf-8")
        lines = page.split("## Packages")[1].split("\n## ")[0].splitlines()
        first = [line.split("|")[1] for line in lines if "|" in line]
        paths = [re.findall(rf"`({self.package}/[\w/.]+)`", cell) for cell in first]
        return [
            [path.removesuffix("__init__.py").removesuffix(".py").strip("/").replace("/", ".") for path in row]
            for row in paths
        ]

    def order(self) -> list[str]:
        """All of the table's packages and modules, from its top."""
        return [name for row in self.rows() for name in row]

    def layers(self) -> dict[str, int]:
        """Package or module of the table -> its layer, from 0 at the top.

        Each is a layer of its own. Only modules of one row and of one package below the house are a layer together.
        """
        found: dict[str, int] = {}
        for row in self.rows():
            before = ""
            for name in row:
                parent = name.rpartition(".")[0]
                together = parent == before and parent not in ("", self.package)
                found[name] = max(found.values(), default=-1) + (not together)
                before = parent
        return found


HOUSES = [
    House("runtime", ROOT, "developer/architecture.md"),
    House("unmask_operator", ROOT / "operator", "developer/operator-architecture.md"),
]
EACH = pytest.mark.parametrize("house", HOUSES, ids=lambda house: house.package)


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


@cache
def imports_of(path: Path) -> tuple[tuple[str, str, str], ...]:
    return tuple(imports(ast.parse(path.read_text(encoding="utf-8"))))


def home(module: str, packages: list[str]) -> str:
    """The package of the table that a module is of."""
    mine = [package for package in packages if module == package or module.startswith(f"{package}.")]
    return max(mine, key=len)


@EACH
def test_modules_import_each_other_in_no_circle(house):
    try:
        TopologicalSorter(house.graph(*RUNS)).prepare()
    except CycleError as circle:
        pytest.fail(f"a circle: {' -> '.join(circle.args[1])}")


@EACH
def test_every_module_is_in_the_table(house):
    packages = house.order()
    assert len(packages) == len(set(packages))
    for module in house.modules():
        assert module == house.package or home(module, packages) != house.package, f"{module} is of no row"
    for package in packages:
        assert package in house.modules(), f"{package} is not there"


@EACH
def test_packages_import_only_those_above_them(house):
    packages, layers = house.order(), house.layers()
    wrong = [
        f"{module} -> {other}"
        for module, others in house.graph(*RUNS, TYPING).items()
        for other in others
        if layers[home(other, packages)] > layers[home(module, packages)]
    ]
    assert wrong == []


def test_the_runtime_imports_no_training():
    wrong = [
        f"{module} -> {name}"
        for module, path in HOUSES[0].modules().items()
        for name, _, _ in imports_of(path)
        if name.split(".")[0] == "training"
    ]
    assert wrong == []


def test_the_operators_core_does_no_io():
    house = HOUSES[1]
    packages = house.order()
    core = packages[: packages.index("unmask_operator.pod_http")]
    core.remove("unmask_operator.settings")
    assert len(core) == 5
    wrong = [
        f"{module} -> {name}"
        for module, path in house.modules().items()
        if home(module, packages) in core
        for name, _, _ in imports_of(path)
        if name.split(".")[0] in OUTSIDE
    ]
    assert wrong == []


def test_a_circle_would_be_found():
    assert list(imports(ast.parse("from a import b\nif TYPE_CHECKING:\n    import c\ndef f():\n    import d"))) == [
        ("a", "b", "module"),
        ("c", "", "typing"),
        ("d", "", "function"),
    ]
