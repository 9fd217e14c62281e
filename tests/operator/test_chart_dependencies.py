"""Tests of both charts as dependencies of a parent chart: conditions, tags, aliases, globals, and nested parents."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.operator.helm import CHART, CRDS, NAMESPACE, helm

pytestmark = pytest.mark.programs

Obj = dict[str, Any]
REGISTRY = {"global": {"imageRegistry": "registry.example/team"}}
CHARTS = {"unmask-operator": CHART, "unmask-crds": CRDS}
BOTH = ("unmask-crds", "unmask-operator")
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
    (path / "values.yaml").write_text(yaml.safe_dump(values))
    return path


def template(path: Path, *arguments: str) -> list[Obj]:
    text = helm("template", "p", str(path), "--namespace", NAMESPACE, "--kube-version", "1.34.4", *arguments)
    return [obj for obj in yaml.safe_load_all(text) if obj]


def kinds(objects: list[Obj]) -> set[str]:
    """Returns which of the kinds that identify a chart are among the objects."""
    return {obj["kind"] for obj in objects} & set(KINDS.values())


def needs(name: str, **fields: Any) -> Obj:
    return {"name": name, "version": "0.1.0", **fields}


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("enabled", [True, False])
def test_a_condition_in_the_values_switches_a_dependency(tmp_path: Path, name: str, enabled: bool) -> None:
    values = {name: {"enabled": enabled}, **REGISTRY}
    path = parent(tmp_path / "platform", [needs(name, condition=f"{name}.enabled")], values)
    assert kinds(template(path)) == ({KINDS[name]} if enabled else set())
    opposite = f"{name}.enabled={str(not enabled).lower()}"
    assert kinds(template(path, "--set", opposite)) == (set() if enabled else {KINDS[name]})


def test_both_charts_are_dependencies_of_one_parent(tmp_path: Path) -> None:
    values = {name: {"enabled": True} for name in BOTH} | REGISTRY
    path = parent(tmp_path / "platform", [needs(name, condition=f"{name}.enabled") for name in BOTH], values)
    assert kinds(template(path)) == set(KINDS.values())
    assert kinds(template(path, "--set", "unmask-crds.enabled=false")) == {"Deployment"}


@pytest.mark.parametrize("name", CHARTS)
def test_tags_switch_a_dependency(tmp_path: Path, name: str) -> None:
    values = {"tags": {"inference": True}, name: {"tags": {"inference": True}}, **REGISTRY}
    path = parent(tmp_path / "platform", [needs(name, tags=["inference"])], values)
    assert kinds(template(path)) == {KINDS[name]}
    assert kinds(template(path, "--set", "tags.inference=false")) == set()


@pytest.mark.parametrize("alias", ["operator", "unmask", "unmaskOperator", "unmask_operator"])
def test_an_alias_names_the_objects_and_the_values(tmp_path: Path, alias: str) -> None:
    values = {alias: {"enabled": True, "replicas": 3}, **REGISTRY}
    path = parent(tmp_path / "platform", [needs("unmask-operator", alias=alias, condition=f"{alias}.enabled")], values)
    objects = template(path)
    (deployment,) = (obj for obj in objects if obj["kind"] == "Deployment")
    assert deployment["spec"]["replicas"] == 3
    for obj in objects:
        if not obj["kind"].startswith("ClusterRole"):
            assert obj["metadata"]["name"].replace("-", "").isalnum()
            assert obj["metadata"]["name"].islower()
    pods = deployment["spec"]["template"]["metadata"]["labels"]
    for obj in objects:
        if obj["kind"] == "Service":
            assert obj["spec"]["selector"].items() <= pods.items()
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environment = {entry["name"]: entry.get("value", "") for entry in container["env"]}
    selector = dict(pair.split("=") for pair in environment["UNMASK_OPERATOR_OPERATOR_SELECTOR"].split())
    assert selector.items() <= pods.items()


def test_a_chart_is_a_dependency_twice_under_two_aliases(tmp_path: Path) -> None:
    dependencies = [needs("unmask-operator", alias=alias, condition=f"{alias}.enabled") for alias in ("blue", "green")]
    values = {
        "blue": {"enabled": True, "watchSelector": "track!=canary"},
        "green": {"enabled": True, "watchSelector": "track=canary"},
        **REGISTRY,
    }
    objects = template(parent(tmp_path / "platform", dependencies, values))
    names = [(obj["kind"], obj["metadata"]["name"]) for obj in objects]
    assert len(names) == len(set(names))
    deployments = [obj for obj in objects if obj["kind"] == "Deployment"]
    assert {obj["metadata"]["name"] for obj in deployments} == {"p-blue", "p-green"}
    first, second = (obj["spec"]["selector"]["matchLabels"] for obj in deployments)
    assert first != second


@pytest.mark.parametrize("name", CHARTS)
def test_globals_of_other_charts_are_accepted(tmp_path: Path, name: str) -> None:
    shared = {
        "imageRegistry": "registry.example/team",
        "imagePullSecrets": [],
        "storageClass": "fast",
        "enabled": True,
        "security": {"allowInsecureImages": False},
        "labels": None,
    }
    path = parent(tmp_path / "platform", [needs(name, condition=f"global.{name},{name}.enabled")], {"global": shared})
    assert kinds(template(path)) == {KINDS[name]}
    assert kinds(template(path, "--set", f"global.{name}=false")) == set()


@pytest.mark.parametrize("name", CHARTS)
def test_values_are_imported_into_the_parent(tmp_path: Path, name: str) -> None:
    own = {"enabled": True, "exports": {"shared": {"color": "blue"}}}
    dependency = needs(name, condition=f"{name}.enabled", **{"import-values": ["shared"]})
    path = parent(tmp_path / "platform", [dependency], {name: own, **REGISTRY})
    (path / "templates").mkdir()
    text = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c"},
        "data": {"color": "{{ .Values.color }}"},
    }
    (path / "templates" / "map.yaml").write_text(yaml.safe_dump(text))
    objects = template(path)
    assert kinds(objects) == {KINDS[name]}
    assert {"color": "blue"} in [obj.get("data") for obj in objects]


def test_a_parent_of_a_parent_switches_both_charts(tmp_path: Path) -> None:
    outer = tmp_path / "company"
    inner = {name: {"enabled": True} for name in BOTH}
    parent(
        outer,
        [needs("platform", condition="platform.enabled", version="0.0.1")],
        {"platform": {"enabled": True}, **REGISTRY},
    )
    parent(outer / "charts" / "platform", [needs(name, condition=f"{name}.enabled") for name in BOTH], inner)
    assert kinds(template(outer)) == set(KINDS.values())
    assert kinds(template(outer, "--set", "platform.unmask-operator.enabled=false")) == {"CustomResourceDefinition"}
    assert kinds(template(outer, "--set", "platform.enabled=false")) == set()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("unmask-operator", {"enable": True}),
        ("unmask-operator", {"enabled": "yes"}),
        ("unmask-operator", {"enabled": {"operator": True}}),
        ("unmask-operator", {"tag": {}}),
        ("unmask-operator", {"tags": {"inference": "on"}}),
        ("unmask-operator", {"enabled": True, "replica": 3}),
        ("unmask-operator", {"log": {"enabled": True}}),
        ("unmask-crds", {"enable": True}),
        ("unmask-crds", {"enabled": 1}),
        ("unmask-crds", {"annotation": {}}),
    ],
)
def test_a_misspelled_value_of_a_dependency_is_refused(tmp_path: Path, name: str, values: Obj) -> None:
    path = parent(tmp_path / "platform", [needs(name)], {name: values, **REGISTRY})
    with pytest.raises(ValueError, match="don't meet the specifications of the schema"):
        template(path)


def installed_alone(tmp_path: Path, name: str) -> Path:
    return CHARTS[name]


def without_condition(tmp_path: Path, name: str) -> Path:
    return parent(tmp_path / "platform", [needs(name)], {name: {"enabled": False}, **REGISTRY})


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("chart", [installed_alone, without_condition])
def test_enabled_false_that_no_condition_reads_is_refused(
    tmp_path: Path, name: str, chart: Callable[[Path, str], Path]
) -> None:
    with pytest.raises(ValueError, match="condition"):
        template(chart(tmp_path, name), "--set", "enabled=false,global.imageRegistry=registry.example/team")


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_without_parent_accepts_enabled_true(name: str) -> None:
    assert kinds(template(CHARTS[name], "--set", "enabled=true,global.imageRegistry=registry.example/team")) == {
        KINDS[name]
    }


@pytest.mark.parametrize(
    ("values", "spec"),
    [
        ({}, {}),
        ({"ipFamilyPolicy": "PreferDualStack"}, {"ipFamilyPolicy": "PreferDualStack"}),
        ({"ipFamilies": ["IPv6"]}, {"ipFamilies": ["IPv6"]}),
        (
            {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]},
            {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]},
        ),
    ],
)
def test_the_operators_service_has_the_address_families_of_its_values(tmp_path: Path, values: Obj, spec: Obj) -> None:
    path = parent(
        tmp_path / "platform", [needs("unmask-operator")], {"unmask-operator": {"service": values}, **REGISTRY}
    )
    (service,) = (obj["spec"] for obj in template(path) if obj["kind"] == "Service")
    assert {name: value for name, value in service.items() if name.startswith("ipFamil")} == spec


def test_an_upgrade_that_reuses_values_from_before_the_section_renders(tmp_path: Path) -> None:
    path = parent(tmp_path / "platform", [needs("unmask-operator")], {"unmask-operator": {"service": None}, **REGISTRY})
    assert kinds(template(path)) == {"Deployment"}


@pytest.mark.parametrize(
    "values",
    [
        {"ipFamilyPolicy": "DualStack"},
        {"ipFamilies": ["ipv6"]},
        {"ipFamilies": ["IPv4", "IPv4"], "ipFamilyPolicy": "PreferDualStack"},
        {"ipFamilies": ["IPv4", "IPv6"]},
        {"ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "SingleStack"},
        {"ipFamily": "IPv6"},
    ],
)
def test_address_families_that_no_service_can_have_are_refused(tmp_path: Path, values: Obj) -> None:
    path = parent(
        tmp_path / "platform", [needs("unmask-operator")], {"unmask-operator": {"service": values}, **REGISTRY}
    )
    with pytest.raises(ValueError, match="don't meet the specifications of the schema"):
        template(path)
