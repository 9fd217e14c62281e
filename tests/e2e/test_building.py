"""Tests that need compiled programs come last and wait while `make test` compiles them."""

import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from e2e.cluster.binaries import wait_built
from e2e.cluster.config import environment
from tests.conftest import pytest_collection_modifyitems

ROOT = Path(__file__).parents[2]


def item(name, *marks):
    return SimpleNamespace(name=name, get_closest_marker=lambda mark: mark in marks or None)


@pytest.mark.parametrize(("compiling", "order"), [(True, "bdac"), (False, "abcd")])
def test_what_needs_no_program_comes_first_while_some_are_compiled(tmp_path, monkeypatch, compiling, order):
    monkeypatch.delenv("UNMASK_E2E_BUILDING", raising=False)
    if compiling:
        monkeypatch.setenv("UNMASK_E2E_BUILDING", str(tmp_path))
    items = [item("a", "cluster"), item("b"), item("c", "programs"), item("d", "slow")]
    pytest_collection_modifyitems(items)
    assert "".join(one.name for one in items) == order


def test_waiting_ends_with_the_compilation(tmp_path):
    env = environment({"UNMASK_E2E_BUILDING": str(tmp_path)})
    waits = threading.Thread(target=wait_built, args=(env,), daemon=True)
    waits.start()
    waits.join(0.5)
    assert waits.is_alive()
    (tmp_path / "status").write_text("1")
    waits.join(5)
    assert not waits.is_alive()
    start = time.monotonic()
    wait_built(environment({}))
    assert time.monotonic() - start < 0.1


def test_waiting_is_no_part_of_a_tests_time_limit(tmp_path):
    """A session of its own, with a limit that is shorter than the compilation."""
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import *\nfrom tests.conftest import pytest_runtest_protocol\n"
    )
    (tmp_path / "test_it.py").write_text("import pytest\n@pytest.mark.cluster\ndef test_it(): pass\n")
    (tmp_path / "building").mkdir()
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "UNMASK_E2E_BUILDING": str(tmp_path / "building")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout=1", "-W", "ignore", str(tmp_path)]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as session:
        time.sleep(6)
        assert session.poll() is None
        (tmp_path / "building" / "status").write_text("0")
        said = session.communicate(timeout=60)[0]
    assert session.returncode == 0, said


def test_every_module_that_runs_helm_says_so():
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search(r"^from tests\.operator\.helm import", text, re.MULTILINE):
            assert re.search(r"^pytestmark = pytest\.mark\.(cluster|programs)$", text, re.MULTILINE), path
