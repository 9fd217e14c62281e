"""The operator uses its libraries as they are: what it extends or overrides could change with any release."""

import ast
from pathlib import Path

import pytest

OPERATOR = Path(__file__).parents[2] / "operator"


# Of kopf one class is meant to be extended.
EXTENDED = {("settings.py", "NoDiffBase")}


@pytest.mark.parametrize("library", ["aiohttp", "kopf"])
def test_no_class_of_a_library_is_extended_and_nothing_private_of_it_used(library):
    found = []
    for file in OPERATOR.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found += [(file.name, node.name) for base in node.bases if ast.unparse(base).startswith(f"{library}.")]
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == library:
                found += [(file.name, alias.name) for alias in node.names if alias.name.startswith("_")]
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                found += [(file.name, ast.unparse(node))] if ast.unparse(node).startswith(f"{library}.") else []
    assert set(found) <= EXTENDED


def test_kopf_is_imported_where_the_operator_is_wired_to_it_and_nowhere_else():
    found = set()
    for file in OPERATOR.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {(file.name, name) for name in names if name.split(".")[0] == "kopf"}
    assert found == {("handlers.py", "kopf"), ("settings.py", "kopf"), ("__main__.py", "kopf")}
