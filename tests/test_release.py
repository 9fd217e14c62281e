"""Tests of the release check, which refuses unfilled placeholders and different versions."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tools import release

ROOT = Path(__file__).parents[1]
CHARTS = [ROOT / "charts" / name / "Chart.yaml" for name in ("unmask-crds", "unmask-operator")]


@pytest.fixture
def tree(tmp_path):
    """Returns a copy of the files that the check reads, ready for a release even if the repository is not."""
    for name in (*release.PLACEHOLDERS, *release.VERSIONS, "pyproject.toml", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
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
    assert release.problems(tree) == []


@pytest.mark.parametrize("name", release.PLACEHOLDERS)
def test_an_unfilled_placeholder_is_refused(tree, name):
    with (tree / name).open("a", encoding="utf-8") as file:
        file.write(f"# {release.PLACEHOLDER}\n")
    (problem,) = release.problems(tree)
    assert problem.startswith(f"{name}:")
    assert release.PLACEHOLDER in problem


@pytest.mark.parametrize("name", release.VERSIONS)
def test_another_version_is_refused(tree, name):
    version = re.search(release.VERSIONS[name], (tree / name).read_text(encoding="utf-8"), re.MULTILINE)[1]
    replace(tree / name, version, "9.9.9")
    (problem,) = release.problems(tree)
    assert problem.startswith(f"{name}: the version is 9.9.9")


def test_a_changelog_without_a_date_is_refused(tree):
    replace(tree / "CHANGELOG.md", "(2026-12-01)", "(unreleased)")
    (problem,) = release.problems(tree)
    assert problem.startswith("CHANGELOG.md")


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
