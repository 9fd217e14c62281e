"""Tests of both charts as dependencies of a parent chart: conditions, tags, aliases, and globals."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.operator.helm import CHART, CRDS, NAMESPACE, helm, parse_objects

pytestmark = pytest.mark.programs

Obj = dict[str, Any]
REGISTRY = {"imageRegistry": "registry.example/team"}
CHARTS = {"unmask-operator": CHART, "unmask-crds": CRDS}
KINDS = {"unmask-operator": "Deployment", "unmask-crds": "CustomResourceDefinition"}


def parent(path: Path, dependencies: list[Obj], values: Obj) -> Path:
    """Creates a chart at `path` with copies of both charts among its dependencies."""
    (path / "charts").mkdir(parents=True)
    for dependency in dependencies:
        source = CHARTS.get(dependency["name"])
        if source is not None and not (path / "charts" / dependency["name"]).exists():
            shutil.copytree(source, path / "charts" / dependency["name"])
    chart = {"apiVersion": "v2", "name": path.name, "version": "0.0.1", "dependencies": dependencies}
    (path / "Chart.yaml").write_text(yaml.safe_dump(chart))
    (path / "values.yaml").write_text(yaml.safe_dump({"global": REGISTRY, **values}))
    return path


def template(path: Path, *settings: str) -> list[Obj]:
    options = ("--namespace", NAMESPACE, "--kube-version", "1.34.4")
    return parse_objects(helm("template", "p", str(path), *options, *(f"--set={one}" for one in settings)))


def kinds(path: Path, *settings: str) -> set[str]:
    """Returns which of the kinds that identify a chart are rendered."""
    return {obj["kind"] for obj in template(path, *settings)} & {*KINDS.values()}


def needs(name: str, **fields: Any) -> Obj:
    return {"name": name, "version": "0.1.0", **fields}


SHARED = {**REGISTRY, "imagePullSecrets": [], "storageClass": "fast", "enabled": True, "security": {"a": False}}


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize(
    ("members", "own", "values", "off"),
    [
        ({"condition": "NAME.enabled"}, {"enabled": True, "exports": {}}, {}, "NAME.enabled=false"),
        ({"tags": ["a"]}, {"tags": {"a": True}}, {"tags": {"a": True}}, "tags.a=false"),
        ({"condition": "global.NAME"}, {}, {"global": {**SHARED, "labels": None}}, "global.NAME=false"),
    ],
    ids=["condition", "tags", "globals of other charts"],
)
def test_a_dependency_is_switched(tmp_path: Path, name: str, members: Obj, own: Obj, values: Obj, off: str) -> None:
    named = {key: value.replace("NAME", name) if key == "condition" else value for key, value in members.items()}
    path = parent(tmp_path / "platform", [needs(name, **named)], {name: own, **values})
    assert kinds(path) == {KINDS[name]}
    assert kinds(path, off.replace("NAME", name)) == set()


@pytest.mark.parametrize(
    ("name", "values"),
    [("unmask-operator", {"enable": True}), ("unmask-operator", {"enabled": "yes"}), ("unmask-crds", {"enabled": 1})],
)
def test_a_misspelled_value_of_a_dependency_is_refused(tmp_path: Path, name: str, values: Obj) -> None:
    path = parent(tmp_path / "platform", [needs(name)], {name: values})
    with pytest.raises(ValueError, match="don't meet the specifications of the schema"):
        template(path)


def test_a_chart_is_a_dependency_twice_under_two_aliases(tmp_path: Path) -> None:
    """The objects and values have the alias, also if it is no valid name of an object."""
    aliases = {"unmaskOperator": "track!=canary", "unmask_green": "track=canary"}
    values = {alias: {"replicas": 3, "watchSelector": selector} for alias, selector in aliases.items()}
    path = parent(tmp_path / "platform", [needs("unmask-operator", alias=alias) for alias in aliases], values)
    objects = template(path)
    names = [(obj["kind"], obj["metadata"]["name"]) for obj in objects]
    assert len(names) == len(set(names))
    assert all(name.islower() and name.replace("-", "").replace(":", "").isalnum() for _, name in names)
    selectors = []
    for deployment in (obj["spec"] for obj in objects if obj["kind"] == "Deployment"):
        assert deployment["replicas"] == 3
        selectors.append(deployment["selector"]["matchLabels"])
        pods = deployment["template"]["metadata"]["labels"]
        assert selectors[-1].items() <= pods.items()
        assert [obj for obj in objects if obj["kind"] == "Service" and obj["spec"]["selector"].items() <= pods.items()]
    assert selectors[0] != selectors[1]


@pytest.mark.parametrize("name", CHARTS)
def test_enabled_false_that_no_condition_reads_is_refused(tmp_path: Path, name: str) -> None:
    registry = "global.imageRegistry=registry.example/team"
    assert kinds(CHARTS[name], "enabled=true", registry) == {KINDS[name]}
    with_parent = parent(tmp_path / "platform", [needs(name)], {name: {"enabled": False}})
    for path, settings in ((CHARTS[name], ("enabled=false", registry)), (with_parent, ())):
        with pytest.raises(ValueError, match="condition"):
            template(path, *settings)
