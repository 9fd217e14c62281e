"""Reads the entries from the imports of their packages, and removes entries from a copy of the tree."""

import ast
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("models", "strategies", "algorithms")

# The entries that serve the shipped demo checkpoint. They cannot be removed, because all tests of the server, the
# command line and the examples run on that checkpoint.
DEMO = ("models.llada2", "strategies.multi_bd", "algorithms.threshold")


class Entry(NamedTuple):
    package: str
    name: str

    def __str__(self) -> str:
        return ".".join(self)

    def file(self, root: Path) -> Path:
        return root / "runtime" / self.package / f"{self.name}.py"


def _imports(path: Path) -> set[str]:
    """Returns the modules that a file imports, at module level or in functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def entries(root: Path) -> list[Entry]:
    """Returns all entries. An entry is a module that the `__init__.py` of its package imports."""
    found = []
    for package in PACKAGES:
        tree = ast.parse((root / "runtime" / package / "__init__.py").read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module == f"runtime.{package}":
                found += [Entry(package, alias.name) for alias in node.names]
    return found


def chosen(root: Path, names: Iterable[str]) -> list[Entry]:
    """Returns the entries with these names, given with or without their package.

    Raises:
        ValueError: A name fits no entry or several, or the entry cannot be removed.
    """
    every = entries(root)
    found = []
    for name in names:
        fits = [entry for entry in every if name in (str(entry), entry.name)]
        if not fits:
            raise ValueError(f"{name!r} is no entry; there are: {', '.join(map(str, every))}")
        if len(fits) > 1:
            raise ValueError(f"{name!r} is ambiguous; name one of: {', '.join(map(str, fits))}")
        if str(fits[0]) in DEMO:
            raise ValueError(f"{fits[0]} serves the demo checkpoint, on which most tests run: it cannot be taken out")
        found += fits
    return found


def _declared(path: Path, name: str, package: str) -> list[Entry]:
    """Returns the entries of `package` that an algorithm or a family declares under `name` (`strategies = (...)`)."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        named = isinstance(node, ast.keyword) and node.arg == name
        if named or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name):
            return [Entry(package, each) for each in ast.literal_eval(node.value)]
    return []


def with_dependents(root: Path, entries_out: Iterable[Entry]) -> list[Entry]:
    """Returns the removed entries and those that depend on them.

    These are entries whose files import a removed one (they would import it again), strategies whose own algorithm is
    removed, and families that no remaining strategy or algorithm can decode.
    """
    every = entries(root)
    imports = {entry: _imports(entry.file(root)) for entry in every}
    families = [entry for entry in every if entry.package == "models"]
    decoded = {entry: _declared(entry.file(root), "strategies", "strategies") for entry in families}
    modes = {entry: _declared(entry.file(root), "sampling_modes", "algorithms") for entry in families}
    rules = [entry for entry in every if entry.package == "algorithms"]
    ruled = {entry: _declared(entry.file(root), "strategies", "strategies") for entry in rules}
    out: set[Entry] = set()
    more = set(entries_out)
    while more:
        out |= more
        more = {e for e in every if any(f"runtime.{gone}" in imports[e] for gone in out)}
        more |= {strategy for rule in out & ruled.keys() for strategy in ruled[rule]}
        for needs in (decoded, modes):
            more |= {family for family, by in needs.items() if by and out.issuperset(by)}
        more -= out
    return sorted(out)


def copy_tree(root: Path, to: Path) -> None:
    """Copies all files that git tracks or does not ignore, with uncommitted changes. Links the virtual environment."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)
    if (root / ".venv").exists():
        (to / ".venv").symlink_to((root / ".venv").resolve())


class _Without(ast.NodeTransformer):
    def __init__(self, package: str, names: set[str]) -> None:
        self.package, self.names = package, names

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom | None:
        if node.module == f"runtime.{self.package}":
            node.names = [alias for alias in node.names if alias.name not in self.names]
        return node if node.names else None

    def visit_List(self, node: ast.List) -> ast.List:
        node.elts = [e for e in node.elts if not (isinstance(e, ast.Constant) and e.value in self.names)]
        return node


def take_out(root: Path, gone: Iterable[Entry]) -> None:
    """Removes the entries' imports from their packages, and makes an import of their files raise ImportError."""
    gone = list(gone)
    for package in PACKAGES:
        names = {entry.name for entry in gone if entry.package == package}
        path = root / "runtime" / package / "__init__.py"
        tree = _Without(package, names).visit(ast.parse(path.read_text(encoding="utf-8")))
        path.write_text(ast.unparse(tree) + "\n", encoding="utf-8")
    for entry in gone:
        entry.file(root).write_text(f'raise ImportError("{entry} is taken out")\n', encoding="utf-8")


def named(test: str, names: Iterable[str]) -> set[str]:
    """Returns those of `names` that a test's id contains as words, in the name of the file, the test or a parameter.

    Of overlapping names the longest one counts (`llada_moe` does not contain `llada`).
    """
    longest = sorted(names, key=len, reverse=True)
    return set(re.findall(rf"(?<![a-z0-9])(?:{'|'.join(longest)})(?![a-z0-9])", test.replace("-", "_")))
