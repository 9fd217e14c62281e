"""CI runs make targets that exist, and a public host runs the same ones as `.ci/run`."""

import re
from pathlib import Path

import yaml

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


def test_ci_runs_targets_of_the_makefile():
    assert ci_targets() <= makefile_targets()


def test_the_workflow_of_a_public_host_runs_the_targets_of_ci():
    assert workflow_targets() == ci_targets()
