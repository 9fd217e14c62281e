"""Tests that CI runs existing make targets, and that the workflow of a public host runs those of `.ci/run`."""

import re
import tomllib
from pathlib import Path

import yaml

from tests import under_load

ROOT = Path(__file__).parents[2]


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def ci_targets() -> set[str]:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (targets,) = re.findall(r"^for target in (.*); do$", script, re.MULTILINE)
    return set(targets.split())


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


def test_ci_runs_targets_of_the_makefile():
    assert ci_targets() <= makefile_targets()


def test_the_workflow_of_a_public_host_runs_the_targets_of_ci():
    assert workflow_targets() == ci_targets()
