"""Tests that need compiled programs come last and wait while `make test` compiles them."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from e2e.cluster.binaries import wait_built
from e2e.cluster.config import environment
from tests import wait
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


def test_waiting_ends_with_the_compilation(tmp_path, monkeypatch):
    polls = []

    def sleep(seconds):
        polls.append(seconds)
        if len(polls) == 3:
            (tmp_path / "status").write_text("1")

    monkeypatch.setattr(wait, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=sleep))
    wait_built(environment({"UNMASK_E2E_BUILDING": str(tmp_path)}))
    assert len(polls) == 3
    wait_built(environment({}))
    assert len(polls) == 3, "without a compiler there is nothing to wait for"


CONFTEST = """
from pathlib import Path

from e2e.cluster import binaries
from tests.conftest import pytest_runtest_protocol


def note(event):
    with open(Path(__file__).with_name("events"), "a") as events:
        events.write(event + " ")


def pytest_timeout_set_timer(item, settings):
    note(f"limit:{settings.timeout:g}")
    return True  # no other timer is set


binaries.wait_built = lambda env: note("built")
"""


def test_waiting_is_no_part_of_a_tests_time_limit(tmp_path):
    """A session of its own: the limit of a test begins once the programs are built."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text("import pytest\n@pytest.mark.cluster\ndef test_it(): pass\n")
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout=77", "-W", "ignore", str(tmp_path)]
    session = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert session.returncode == 0, session.stdout
    assert (tmp_path / "events").read_text().split() == ["built", "limit:77"]


def test_every_module_that_runs_helm_says_so():
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search(r"^from tests\.operator\.helm import", text, re.MULTILINE):
            assert re.search(r"^pytestmark = pytest\.mark\.(cluster|programs)$", text, re.MULTILINE), path
