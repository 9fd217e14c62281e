"""Tests of the release check, which refuses unfilled placeholders and different versions."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from tools import release

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
CHARTS = [ROOT / "charts" / name / "Chart.yaml" for name in ("unmask-crds", "unmask-operator")]


WORKFLOW = ROOT / release.WORKFLOW


@pytest.fixture
def tree(tmp_path):
    """Returns a copy of the files that the check reads, ready for a release even if the repository is not."""
    for name in (*release.PLACEHOLDERS, *release.VERSIONS, "pyproject.toml", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    replace(tmp_path / release.WORKFLOW, f"@{release.PLACEHOLDER}  #", f"@{'a' * 40}  #")
    replace(tmp_path / release.WORKFLOW, f"@sha256:{release.PLACEHOLDER}", f"@sha256:{'b' * 64}")
    for name in release.PLACEHOLDERS:
        replace(tmp_path / name, release.PLACEHOLDER, "unmask.example")
    changelog = tmp_path / "CHANGELOG.md"
    (heading,) = re.findall(r"^## \S+ \((.*)\)$", changelog.read_text(encoding="utf-8"), re.MULTILINE)[:1]
    replace(changelog, f"({heading})", "(2026-12-01)")
    return tmp_path


def replace(path, old, new):
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_a_filled_tree_can_be_released(tree):
    assert release.problems(tree) == release.problems(tree, f"v{VERSION}") == []


@pytest.mark.parametrize(
    ("name", "old", "new", "problem"),
    [
        *((name, "\n", f"\n# {release.PLACEHOLDER}\n", f"{name}:2: not filled: # ") for name in release.PLACEHOLDERS),
        *((name, VERSION, "9.9.9", f"{name}: the version is 9.9.9") for name in release.VERSIONS),
        ("CHANGELOG.md", "(2026-12-01)", "(unreleased)", "CHANGELOG.md: the first heading"),
        (release.WORKFLOW, "@" + "a" * 40, "@v4", "has no commit or digest after the @: - uses: actions/"),
        (release.WORKFLOW, "@sha256:" + "b" * 64, "", "has no commit or digest after the @: BASE: python:"),
        (release.WORKFLOW, "b" * 64, "b" * 63, "has no commit or digest after the @: BUILDKIT: "),
    ],
)
def test_a_release_is_refused(tree, name, old, new, problem):
    text = (tree / name).read_text(encoding="utf-8")
    once = 1 if release.PLACEHOLDER in new else -1
    (tree / name).write_text(text.replace(old, new, once), encoding="utf-8")
    assert any(problem in found for found in release.problems(tree)), release.problems(tree)


def test_another_tag_than_that_of_the_version_is_refused(tree):
    (problem,) = release.problems(tree, VERSION)
    assert problem.startswith(f"the tag is {VERSION}, but v{VERSION}")


def test_the_workflow_publishes_only_what_the_check_allows():
    """Each job waits for the check. Its commands are targets of make with variables that the Makefile has."""
    jobs = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    assert all("check" in waits_for(jobs, name) for name in jobs.keys() - {"check"})
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    made = [command for command in commands if command.startswith("make ")]
    assert {command.split()[1] for command in made} == {"wheel", "images"}
    for command in made:
        assert re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE)
        variables = set(re.findall(r" ([A-Z]+)=", command)) - {"SOURCE_DATE_EPOCH"}
        assert variables <= set(re.findall(r"^([A-Z]+) \?=", makefile, re.MULTILINE))
    writers = {name for name, job in jobs.items() if "write" in job.get("permissions", {}).values()}
    assert writers == {"wheel", "publish"}


def waits_for(jobs, name):
    """Returns all jobs that a job needs, also indirectly."""
    needs = jobs[name].get("needs", [])
    direct = {needs} if isinstance(needs, str) else set(needs)
    return direct.union(*(waits_for(jobs, each) for each in direct))


def test_every_placeholder_is_known_to_the_check_and_the_checklist():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    texts = {name: (ROOT / name).read_bytes() for name in listed if (ROOT / name).is_file()}
    about = {"tools/release.py", "docs/developer/release.md"}
    marked = {name for name, text in texts.items() if release.PLACEHOLDER.encode() in text} - about
    assert marked <= set(release.PLACEHOLDERS)  # fewer, once a publisher has filled them
    checklist = (ROOT / "docs/developer/release.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in checklist for name in release.PLACEHOLDERS)


@pytest.mark.parametrize("path", CHARTS, ids=lambda path: path.parent.name)
def test_metadata_of_the_charts_is_that_of_the_project(path):
    chart = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert chart["maintainers"] == [{"name": "Unmask"}]
    assert chart["icon"].startswith("data:image/svg+xml;base64,")
    assert chart["sources"]
    assert all(address.startswith("https://") for address in (chart["home"], *chart["sources"]))
    crds = yaml.safe_load(chart["annotations"]["artifacthub.io/crds"])
    definition = yaml.safe_load((ROOT / "crds" / f"{crds[0]['name']}.yaml").read_text(encoding="utf-8"))
    assert crds[0]["kind"] == definition["spec"]["names"]["kind"]
    assert crds[0]["version"] in [version["name"] for version in definition["spec"]["versions"]]


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yaml")), ids=lambda path: path.stem
)
def test_issue_templates_are_forms(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= form.keys()
    assert all(field["attributes"].get("label") for field in form["body"] if field["type"] != "markdown")
