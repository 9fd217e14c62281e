"""Tests of the imports in the runtime and the operator: no cycles, and packages import only from layers above them.

The order of the layers is that of the table on the architecture page of each distribution package. Some packages have
modules in several rows. A module belongs to its own row if there is one, else to the row of its package.
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
RUNS = ("module", "function")  # executed when the module is imported, or when a function is called
TYPING = "typing"  # never executed: under TYPE_CHECKING
# Modules for I/O, time and concurrency. The operator's core imports none of them, except that its settings read the
# environment.
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
    """A top-level package of the distribution.

    Attributes:
        package: its name.
        folder: folder that contains it.
        page: architecture page with the table of its packages, below docs/.
    """

    package: str
    folder: Path
    page: str

    def modules(self) -> dict[str, Path]:
        """Returns the paths of its modules by dotted name. A package is the path of its ``__init__.py``."""
        names = {}
        for path in (self.folder / self.package).rglob("*.py"):
            parts = path.relative_to(self.folder).with_suffix("").parts
            names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        return names

    def graph(self, *when: str) -> dict[str, set[str]]:
        """Returns module -> modules of the same top-level package that it imports at the given times."""
        known = self.modules()
        found: dict[str, set[str]] = {}
        for name, path in known.items():
            every = imports_of(path)
            imported = {f"{m}.{n}" if f"{m}.{n}" in known else m for m, n, at in every if at in when}
            found[name] = imported & known.keys() - {name}
        return found

    def rows(self) -> list[list[str]]:
        """Returns the dotted names of the table's packages and modules per row, from the top."""
        page = (ROOT / "docs" / self.page).read_text(encoding="utf-8")
        lines = page.split("## Packages")[1].split("\n## ")[0].splitlines()
        first = [line.split("|")[1] for line in lines if "|" in line]
        paths = [re.findall(rf"`({self.package}/[\w/.]+)`", cell) for cell in first]
        return [
            [path.removesuffix("__init__.py").removesuffix(".py").strip("/").replace("/", ".") for path in row]
            for row in paths
        ]

    def order(self) -> list[str]:
        """Returns all packages and modules of the table, from the top."""
        return [name for row in self.rows() for name in row]

    def layers(self) -> dict[str, int]:
        """Returns package or module of the table -> its layer, from 0 at the top.

        Each is a separate layer, except that consecutive modules of one row and of the same subpackage share a layer.
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
    """Yields each import below `tree` as (module, imported name or "", when it is executed)."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "", when) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "the import is relative"
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
    """Returns the most specific package or module of the table that contains a module."""
    mine = [package for package in packages if module == package or module.startswith(f"{package}.")]
    return max(mine, key=len)


@EACH
def test_imports_have_no_cycles(house):
    try:
        TopologicalSorter(house.graph(*RUNS)).prepare()
    except CycleError as circle:
        pytest.fail(f"a circle: {' -> '.join(circle.args[1])}")


@EACH
def test_every_module_is_in_the_table(house):
    packages = house.order()
    assert len(packages) == len(set(packages))
    for module in house.modules():
        assert module == house.package or home(module, packages) != house.package, f"{module} is in no row of the table"
    for package in packages:
        assert package in house.modules(), f"the table has {package}, which does not exist"


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


@EACH
def test_the_wheel_imports_no_training_and_no_tools(house):
    wrong = [
        f"{module} -> {name}"
        for module, path in house.modules().items()
        for name, _, _ in imports_of(path)
        if name.split(".")[0] in ("training", "tools", "tests")
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


def test_imports_are_found_with_the_time_of_execution():
    assert list(imports(ast.parse("from a import b\nif TYPE_CHECKING:\n    import c\ndef f():\n    import d"))) == [
        ("a", "b", "module"),
        ("c", "", "typing"),
        ("d", "", "function"),
    ]
