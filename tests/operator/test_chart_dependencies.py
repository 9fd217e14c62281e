"""Tests of both charts as dependencies of a parent chart: conditions, tags, aliases, globals, and nested parents."""

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
BOTH = set(KINDS.values())


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
    return {obj["kind"] for obj in template(path, *settings)} & BOTH


def needs(name: str, **fields: Any) -> Obj:
    return {"name": name, "version": "0.1.0", **fields}


SHARED = {**REGISTRY, "imagePullSecrets": [], "storageClass": "fast", "enabled": True, "security": {"a": False}}
# Members of the dependency, the chart's values, the parent's values, and the setting that switches it off.
SWITCHES: dict[str, tuple[Obj, Obj, Obj, str]] = {
    "condition": ({"condition": "NAME.enabled"}, {"enabled": True, "exports": {}}, {}, "NAME.enabled=false"),
    "tags": ({"tags": ["a"]}, {"tags": {"a": True}}, {"tags": {"a": True}}, "tags.a=false"),
    "globals of other charts": (
        {"condition": "global.NAME,NAME.enabled"},
        {},
        {"global": {**SHARED, "labels": None}},
        "global.NAME=false",
    ),
}


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("switch", SWITCHES)
def test_a_dependency_is_switched(tmp_path: Path, name: str, switch: str) -> None:
    members, own, values, off = SWITCHES[switch]
    named = {key: value.replace("NAME", name) if key == "condition" else value for key, value in members.items()}
    path = parent(tmp_path / "platform", [needs(name, **named)], {name: own, **values})
    assert kinds(path) == {KINDS[name]}
    assert kinds(path, off.replace("NAME", name)) == set()


def test_a_parent_of_a_parent_switches_both_charts(tmp_path: Path) -> None:
    outer = tmp_path / "company"
    platform = {"name": "platform", "version": "0.0.1", "condition": "platform.enabled"}
    parent(outer, [platform], {"platform": {"enabled": True}})
    dependencies = [needs(name, condition=f"{name}.enabled") for name in CHARTS]
    parent(outer / "charts" / "platform", dependencies, {name: {"enabled": True} for name in CHARTS})
    assert kinds(outer) == BOTH
    assert kinds(outer, "platform.unmask-operator.enabled=false") == {"CustomResourceDefinition"}
    assert kinds(outer, "platform.enabled=false") == set()


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
    for deployment in (obj for obj in objects if obj["kind"] == "Deployment"):
        assert deployment["spec"]["replicas"] == 3
        selectors.append(deployment["spec"]["selector"]["matchLabels"])
        pods = deployment["spec"]["template"]["metadata"]["labels"]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        (own,) = (entry["value"] for entry in container["env"] if entry["name"] == "UNMASK_OPERATOR_OPERATOR_SELECTOR")
        assert dict(pair.split("=") for pair in own.split()).items() <= pods.items()
        assert [obj for obj in objects if obj["kind"] == "Service" and obj["spec"]["selector"].items() <= pods.items()]
    assert len(selectors) == 2
    assert selectors[0] != selectors[1]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("unmask-operator", {"enable": True}),
        ("unmask-operator", {"enabled": "yes"}),
        ("unmask-operator", {"tags": {"inference": "on"}}),
        ("unmask-operator", {"enabled": True, "replica": 3}),
        ("unmask-operator", {"log": {"enabled": True}}),
        ("unmask-crds", {"enable": True}),
        ("unmask-crds", {"enabled": 1}),
    ],
)
def test_a_misspelled_value_of_a_dependency_is_refused(tmp_path: Path, name: str, values: Obj) -> None:
    path = parent(tmp_path / "platform", [needs(name)], {name: values})
    with pytest.raises(ValueError, match="don't meet the specifications of the schema"):
        template(path)


@pytest.mark.parametrize("name", CHARTS)
def test_enabled_false_that_no_condition_reads_is_refused(tmp_path: Path, name: str) -> None:
    registry = "global.imageRegistry=registry.example/team"
    assert kinds(CHARTS[name], "enabled=true", registry) == {KINDS[name]}
    with_parent = parent(tmp_path / "platform", [needs(name)], {name: {"enabled": False}})
    for path, settings in ((CHARTS[name], ("enabled=false", registry)), (with_parent, ())):
        with pytest.raises(ValueError, match="condition"):
            template(path, *settings)
