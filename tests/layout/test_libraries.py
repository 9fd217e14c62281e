"""The operator uses its HTTP library as it is: what it extends or overrides could change with any release."""

import ast
from pathlib import Path

import pytest

OPERATOR = Path(__file__).parents[2] / "operator"


@pytest.mark.parametrize("library", ["aiohttp"])
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
    assert found == []
