"""Tests that the operator depends only on the public API of its libraries, and extends only one of their classes.

Extended classes and private names could change with any release.
"""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

OPERATOR = Path(__file__).parents[2] / "operator"


# kopf intends this one of its classes for subclasses.
EXTENDED = {("settings.py", "NoDiffBase")}


@pytest.mark.parametrize("library", ["aiohttp", "kopf", "kubernetes"])
def test_no_class_of_a_library_is_extended_and_no_private_name_is_used(library):
    found = []
    for file in OPERATOR.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found += [(file.name, node.name) for base in node.bases if ast.unparse(base).startswith(f"{library}.")]
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == library:
                found += [(file.name, alias.name) for alias in node.names if alias.name.startswith("_")]
                found += [(file.name, node.module)] if "._" in (node.module or "") else []
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                found += [(file.name, ast.unparse(node))] if ast.unparse(node).startswith(f"{library}.") else []
    assert set(found) <= EXTENDED


def test_only_the_modules_that_configure_kopf_import_it():
    found = set()
    for file in OPERATOR.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {(file.name, name) for name in names if name.split(".")[0] == "kopf"}
    assert found == {("handlers.py", "kopf"), ("settings.py", "kopf"), ("__main__.py", "kopf")}


PROGRAM = """
import json, sys
import unmask_operator.__main__
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"modules": sorted(sys.modules), "kilobytes": int(status["VmRSS"].split()[0])}))
"""


def test_the_program_imports_no_typed_api_of_the_official_client():
    """The API modules of the operator's kinds take 40 MB. kopf imports two models, which import one more.

    If `kubernetes_asyncio` is installed, kopf imports it too, which takes 106 MB.
    """
    environment = {**os.environ, "PYTHONPATH": f"{OPERATOR}{os.pathsep}{OPERATOR.parent}"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(done.stdout)
    typed = [name for name in found["modules"] if name.startswith(("kubernetes.client.", "kubernetes.aio.client."))]
    assert "kubernetes.aio.client.api_client" in typed
    assert [name for name in typed if ".api." in name] == []
    assert len([name for name in typed if ".models." in name]) <= 3
    assert importlib.util.find_spec("kubernetes_asyncio") is None
    assert found["kilobytes"] < 80_000
