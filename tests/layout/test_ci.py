"""Tests of CI: its parts exist, the workflow of a public host has all of them, and failed tests are repeated."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests import under_load
from tools import ci

ROOT = Path(__file__).parents[2]
SECOND_TIME = """
import pathlib, pytest
seen = pathlib.Path("seen")
@pytest.mark.{marker}
@pytest.mark.parametrize("n", range({count}))
def test_fails_once(n):
    before = seen.exists() and str(n) in seen.read_text().split()
    with seen.open("a") as file:
        file.write(f"{{n}} ")
    assert before, "the first failure"
"""
ALWAYS = "import pytest\n@pytest.mark.cluster\ndef test_fails():\n    assert False\n"
COLLECTION = "import pytest\nraise OSError\n"
# Other plug-ins of pytest are not loaded, because they take seconds.
MAKEFILE = f"""
PYTEST := PYTHONPATH={ROOT} PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {sys.executable} -m pytest -p xdist -q test_it.py
test-rest:
\t$(PYTEST) -n 2 $(ARGS)
test:
\t$(PYTEST) $(ARGS)
"""


def workflow_targets() -> set[str]:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    matrices = [job["strategy"]["matrix"] for job in jobs.values()]
    return {
        target
        for matrix in matrices
        for target in (*matrix.get("target", ()), *(row["target"] for row in matrix.get("include", ())))
    }


def test_make_and_the_run_under_load_select_the_same_tests():
    (on_cpu,) = re.findall(r"^ON_CPU := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    pytest_options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]
    quick = pytest_options["ini_options"]["addopts"]
    assert f"{on_cpu} and not slow" == under_load.CPU_TESTS
    assert quick[-1] == f"{under_load.CPU_TESTS} and not cluster and not programs and not matrix"


def test_the_parts_are_targets_of_the_makefile_and_of_the_workflow():
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(ci.PARTS) <= set(targets)
    assert workflow_targets() == set(ci.PARTS)


@pytest.mark.parametrize(
    ("part", "source", "code", "flaky"),
    [
        ("test-rest", SECOND_TIME.format(marker="cluster", count=2), 0, 2),
        ("test-rest", SECOND_TIME.format(marker="processes", count=5), 0, 5),
        ("test-rest", SECOND_TIME.format(marker="cluster", count=6), 2, 0),
        ("test-rest", SECOND_TIME.format(marker="matrix", count=1), 2, 0),
        ("test", SECOND_TIME.format(marker="cluster", count=1), 2, 0),
        ("test-rest", ALWAYS + SECOND_TIME.format(marker="cluster", count=1), 2, 0),
        ("test-rest", COLLECTION, 2, 0),
    ],
    ids=["two", "processes", "too many", "pure", "make test", "fails again", "collection"],
)
def test_failed_tests_are_repeated(part, source, code, flaky, tmp_path, capfd, monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.delenv("MAKEFLAGS", raising=False)
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "test_it.py").write_text(source)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    cluster\n    processes\n    matrix\n")
    assert ci.run([part], tmp_path) == code
    table = capfd.readouterr().out.partition("FLAKY")[2]
    for text in ("test_it.py::test_fails_once[", "AssertionError: the first failure"):
        assert table.count(text) == flaky


def test_a_run_that_was_interrupted_is_not_repeated(tmp_path):
    test = {"id": "a", "markers": ["node"], "report": ""}
    for code, repeated in ((1, 1), (2, 0), (3, 0)):
        (tmp_path / "failures.json").write_text(json.dumps({"exit_code": code, "tests": [test]}))
        assert len(ci.read_repeatable(tmp_path / "failures.json")) == repeated
