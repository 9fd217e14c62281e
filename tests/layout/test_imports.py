"""Tests of the imports in the runtime and the operator: no circles, and packages import only from those above them.

The order of the packages and top-level modules is that of the table on the architecture page of each distribution
package.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNS = ("module", "function")  # executed when the module is imported, or when a function is called
TYPING = "typing"  # never executed: under TYPE_CHECKING
# Modules for I/O, time and concurrency. The operator's core imports none of them, except that its settings read the
# environment.
OUTSIDE = {
    "aiohttp", "asyncio", "kubernetes", "logging", "os", "prometheus_client", "socket", "subprocess", "time", "urllib",
}  # fmt: skip

PURE = {"kubernetes.utils.quantity"}  # a parser
# Packages and modules of the server -> those of the server that they must not import, not even for types.
APIS = {"admin", "anthropic", "decisions", "generate", "llama_cpp", "mistral", "openai"}
ABOVE_APIS = {"app", "http_server", "middleware", "openapi"}
BELOW_CORE = ("engine_client", "engine_process", "http_protocol", "logs", "metrics")
FORBIDDEN_IN_SERVER = {
    **dict.fromkeys(BELOW_CORE, {"serving"} | APIS | ABOVE_APIS),
    "serving": APIS | ABOVE_APIS,
    **{api: APIS - {api} | ABOVE_APIS for api in sorted(APIS)},
    "middleware": {"app", "http_server"},
}


@dataclass(frozen=True)
class House:
    """A top-level package of the distribution, which a folder contains."""

    package: str
    folder: Path
    page: str  # the architecture page with the table of its packages, below docs/

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

    def layers(self) -> dict[str, int]:
        """Returns package or top-level module of the table -> its place, from 0 at the top."""
        page = (ROOT / "docs" / self.page).read_text(encoding="utf-8")
        table = page.split("## Packages")[1].split("\n## ")[0]
        cells = [line.split("|")[1] for line in table.splitlines() if "|" in line]
        paths = re.findall(rf"`({self.package}/[\w/.]+)`", " ".join(cells))
        names = [re.sub(r"(/__init__)?\.py$|/$", "", path).replace("/", ".") for path in paths]
        assert len(names) == len(set(names)), "a name is in the table twice"
        return {name: place for place, name in enumerate(names)}


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


def imported(house: House, modules: Iterable[str], names: Iterable[str]) -> list[str]:
    """Returns which of these modules import, at any time, one of these top-level packages."""
    every = house.modules()
    found = [(module, name) for module in modules for name, _, _ in imports_of(every[module]) if name not in PURE]
    return [f"{module} -> {name}" for module, name in found if name.split(".")[0] in names]


def home(module: str) -> str:
    """Returns the package or top-level module that contains a module."""
    return ".".join(module.split(".")[:2])


def server_part(module: str) -> str:
    """Returns the package or module of the server that contains a module; "" for one outside the server."""
    return (*module.split("."), "", "")[2] if home(module) == "runtime.server" else ""


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """Returns the modules that `start` imports, directly or through others."""
    found, waiting = set[str](), [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Returns the groups of modules that import each other, directly or through others."""
    found = {module: reachable(graph, module) for module in graph}
    return {
        frozenset(other for other in found[module] if module in found[other])
        for module in graph
        if module in found[module]
    }


@EACH
def test_imports_have_no_circles(house):
    assert circles(house.graph(*RUNS, TYPING)) == set()


@pytest.mark.parametrize("part", FORBIDDEN_IN_SERVER)
def test_the_core_of_the_server_knows_no_api(part):
    forbidden = FORBIDDEN_IN_SERVER[part]
    graph = HOUSES[0].graph(*RUNS, TYPING)
    pairs = [(module, other) for module, others in graph.items() if server_part(module) == part for other in others]
    assert [f"{module} -> {other}" for module, other in pairs if server_part(other) in forbidden] == []


@EACH
def test_the_table_lists_all_packages_and_modules(house):
    assert {home(module) for module in house.modules()} == house.layers().keys()


@EACH
def test_packages_import_only_those_above_them(house):
    layers = house.layers()
    wrong = [
        f"{module} -> {other}"
        for module, others in house.graph(*RUNS, TYPING).items()
        for other in others
        if layers[home(other)] > layers[home(module)]
    ]
    assert wrong == []


@EACH
def test_the_wheel_imports_no_training_and_no_tools(house):
    assert imported(house, house.modules(), ("training", "tools", "tests")) == []


def test_the_operators_core_does_no_io():
    house = HOUSES[1]
    packages = list(house.layers())
    core = packages[: packages.index("unmask_operator.pod_http")]
    core.remove("unmask_operator.settings")
    assert len(core) == 6
    assert imported(house, [module for module in house.modules() if home(module) in core], OUTSIDE) == []


def test_imports_are_found_with_the_time_of_execution():
    tree = ast.parse("from a import b\nif TYPE_CHECKING:\n    import c\ndef f():\n    import d")
    assert list(imports(tree)) == [("a", "b", "module"), ("c", "", "typing"), ("d", "", "function")]
