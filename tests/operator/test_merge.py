"""Tests of the merge of podTemplate: examples of each rule, and invariants for any template."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask_operator.api import SpecError
from unmask_operator.api.pod import PodTemplate
from unmask_operator.objects import SERVICE_LABEL
from unmask_operator.render.merge import APPENDED, LIST_KEYS, merge_template

BASE: dict[str, Any] = {
    "metadata": {"labels": {SERVICE_LABEL: "demo", "team": "a"}},
    "spec": {
        "serviceAccountName": "demo-engine",
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        ],
        "containers": [
            {
                "name": "main",
                "image": "runtime:1",
                "args": ["--port", "8000"],
                "env": [{"name": "HOME", "value": "/tmp"}, {"name": "THREADS", "valueFrom": {"resourceFieldRef": {}}}],
                "ports": [{"name": "http", "containerPort": 8000}],
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}],
                "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 5},
            }
        ],
    },
}


def spec(**members: Any) -> dict[str, Any]:
    return merge_template(BASE, {"spec": members})["spec"]


def main(**members: Any) -> dict[str, Any]:
    return spec(containers=[{"name": "main", **members}])["containers"][0]


def test_maps_merge_and_null_deletes() -> None:
    merged = merge_template(BASE, {"metadata": {"labels": {"team": None, "tier": "x"}, "annotations": {"a": "b"}}})
    assert merged["metadata"] == {"labels": {SERVICE_LABEL: "demo", "tier": "x"}, "annotations": {"a": "b"}}
    assert "serviceAccountName" not in spec(serviceAccountName=None)
    assert spec(nodeSelector={"zone": "1", "old": None})["nodeSelector"] == {"zone": "1"}


def test_a_null_of_metadata_that_the_operator_does_not_set_changes_nothing() -> None:
    """``kubectl create deployment --dry-run=client -o yaml`` writes it into the template."""
    merged = merge_template(BASE, {"metadata": {"creationTimestamp": None, "labels": {"tier": "x"}}})
    assert merged["metadata"] == {"labels": {**BASE["metadata"]["labels"], "tier": "x"}}


def test_an_entry_merges_with_the_one_of_its_key_and_new_ones_follow() -> None:
    merged = spec(containers=[{"name": "proxy", "image": "p:1"}, {"name": "main", "workingDir": "/srv"}])["containers"]
    assert [c["name"] for c in merged] == ["main", "proxy"]
    assert merged[0] == {**BASE["spec"]["containers"][0], "workingDir": "/srv"}
    assert main(volumeMounts=[{"mountPath": "/tmp", "subPath": "x"}])["volumeMounts"][0] == {
        "name": "tmp",
        "mountPath": "/tmp",
        "subPath": "x",
    }
    assert [p["containerPort"] for p in main(ports=[{"containerPort": 9000}])["ports"]] == [8000, 9000]


def test_ports_of_one_number_with_different_protocols_are_two_entries() -> None:
    dns = [{"containerPort": 53, "name": "dns", "protocol": "UDP"}, {"containerPort": 53, "name": "dns-tcp"}]
    assert spec(containers=[{"name": "dns", "ports": dns}])["containers"][1]["ports"] == dns
    assert main(ports=dns)["ports"] == [{"name": "http", "containerPort": 8000}, *dns]


def test_tolerations_are_added_once() -> None:
    more = [{"key": "gpu", "operator": "Exists"}, {"key": "spot", "value": "true"}]
    assert spec(tolerations=more)["tolerations"] == more


def test_a_volume_of_another_kind_replaces_the_kind_and_one_of_the_same_kind_merges() -> None:
    claim = {"claimName": "scratch"}
    assert spec(volumes=[{"name": "tmp", "persistentVolumeClaim": claim}])["volumes"][0] == {
        "name": "tmp",
        "persistentVolumeClaim": claim,
    }
    larger = spec(volumes=[{"name": "shm", "emptyDir": {"sizeLimit": "8Gi"}}])["volumes"][1]
    assert larger["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}


def test_a_variable_has_a_value_or_a_source_never_both() -> None:
    assert main(env=[{"name": "THREADS", "value": "3"}])["env"][1] == {"name": "THREADS", "value": "3"}
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    assert main(env=[{"name": "HOME", "valueFrom": source}])["env"][0] == {"name": "HOME", "valueFrom": source}


def test_an_entry_that_a_null_reduces_to_its_key_is_removed() -> None:
    assert [e["name"] for e in main(env=[{"name": "THREADS", "valueFrom": None}])["env"]] == ["HOME"]
    assert [e["name"] for e in main(env=[{"name": "THREADS", "value": None}])["env"]] == ["HOME"]
    assert [m["name"] for m in main(volumeMounts=[{"mountPath": "/tmp", "name": None}])["volumeMounts"]] == ["shm"]


def test_a_probe_has_one_handler() -> None:
    assert main(readinessProbe={"exec": {"command": ["true"]}})["readinessProbe"] == {
        "exec": {"command": ["true"]},
        "periodSeconds": 5,
    }
    assert main(readinessProbe={"periodSeconds": 9})["readinessProbe"]["httpGet"]["path"] == "/ready"


def test_the_description_of_the_field_names_the_lists_that_merge() -> None:
    names = re.findall(r"\w+", PodTemplate.model_fields["spec"].description or "")
    assert {*LIST_KEYS, *LIST_KEYS.values(), *APPENDED} <= {*names}


VOLUMES = "spec.podTemplate.spec.volumes"
MAIN = "spec.podTemplate.spec.containers[main]"


def of_main(**members: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", **members}]}}


@pytest.mark.parametrize(
    ("patch", "field", "sentence"),
    [
        ({"metadata": {"labels": {SERVICE_LABEL: "x"}}}, "spec.podTemplate.metadata.labels", SERVICE_LABEL),
        ({"metadata": {"labels": {SERVICE_LABEL: None}}}, "spec.podTemplate.metadata.labels", SERVICE_LABEL),
        ({"metadata": {"labels": None}}, "spec.podTemplate.metadata.labels", "remove the null"),
        ({"metadata": {"labels": []}}, "spec.podTemplate.metadata.labels", "must be a map"),
        ({"metadata": {"name": "x"}}, "spec.podTemplate.metadata.name", "only labels and annotations"),
        ({"spec": {"containers": None}}, "spec.podTemplate.spec.containers", "remove the null"),
        ({"spec": {"containers": {"main": {}}}}, "spec.podTemplate.spec.containers", "must be a list"),
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.podTemplate.spec.containers[0]", "has no name"),
        ({"spec": {"initContainers": ["x"]}}, "spec.podTemplate.spec.initContainers[0]", "has no name"),
        (of_main(args=[]), f"{MAIN}.args", "use spec.engine"),
        (of_main(command=None), f"{MAIN}.command", "use spec.image"),
        (of_main(image="x"), f"{MAIN}.image", "use spec.image"),
        (of_main(ports=None), f"{MAIN}.ports", "remove the null"),
        (of_main(ports=[{"containerPort": 8000}]), f"{MAIN}.ports", "use another port"),
        (of_main(ports=[{"containerPort": 1, "name": "http"}]), f"{MAIN}.ports", "use another port"),
        (of_main(env=[{"value": "x"}]), f"{MAIN}.env[0]", "has no name"),
        (of_main(env=[{"name": "A", "value": "1"}, {"name": "A"}]), f"{MAIN}.env[1]", "second entry with name A"),
        ({"spec": {"hostAliases": [{"ip": "::1"}, {"ip": "::1"}]}}, "spec.podTemplate.spec.hostAliases[1]",
         "second entry with ip ::1"),
        (of_main(ports=[{"containerPort": 1}, {"containerPort": 1, "protocol": "TCP"}]), f"{MAIN}.ports[1]",
         "second entry with containerPort 1 TCP"),
        (of_main(readinessProbe=["/x"]), f"{MAIN}.readinessProbe", "must be a map"),
        ({"spec": {"tolerations": {"key": "x"}}}, "spec.podTemplate.spec.tolerations", "must be a list"),
        ({"spec": {"volumes": [{"name": "shm", "emptyDir": "8Gi"}]}}, f"{VOLUMES}[shm].emptyDir", "must be a map"),
    ],
)  # fmt: skip
def test_an_invalid_template_is_rejected_with_its_field(patch: dict[str, Any], field: str, sentence: str) -> None:
    with pytest.raises(SpecError) as caught:
        merge_template(BASE, patch)
    assert caught.value.field == field
    assert sentence in caught.value.message


scalars = st.one_of(st.none(), st.booleans(), st.integers(0, 9), st.sampled_from(["", "a", "b"]))
names = st.sampled_from(["tmp", "shm", "x", "y"])


def entries(key: str, *members: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    other = st.dictionaries(st.sampled_from(members), scalars, max_size=2)
    named = st.builds(lambda name, rest: {**rest, key: name}, names, other)
    return st.lists(named, max_size=3, unique_by=lambda entry: entry[key])


containers = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["main", "proxy"])},
        optional={
            "env": entries("name", "value"),
            "volumeMounts": entries("mountPath", "name", "subPath"),
            "workingDir": scalars,
            "lifecycle": st.none() | st.dictionaries(names, scalars, max_size=2),
        },
    ),
    max_size=2,
    unique_by=lambda entry: entry["name"],
)
patches = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries({}, optional={"annotations": st.dictionaries(names, scalars, max_size=2)}),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": containers,
                "tolerations": entries("key", "value"),
                "nodeSelector": st.none() | st.dictionaries(names, scalars, max_size=2),
                "hostNetwork": scalars,
            },
        ),
    },
)


def has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(v is None or has_null(v) for v in value.values())
    return isinstance(value, list) and any(has_null(v) for v in value)


@given(patches)
def test_invariants_hold_for_any_merge(patch: dict[str, Any]) -> None:
    before = copy.deepcopy((BASE, patch))
    merged = merge_template(BASE, patch)
    assert (BASE, patch) == before, "merge_template changed an argument"
    assert not has_null(merged)
    assert merge_template(merged, patch) == merged, "a second merge of the same patch changed the result"
    engine = merged["spec"]["containers"][0]
    for member in ("name", "image", "args", "ports"):
        assert engine[member] == BASE["spec"]["containers"][0][member]
    assert merged["metadata"]["labels"] == BASE["metadata"]["labels"]
    for container in merged["spec"]["containers"]:
        for member, key in LIST_KEYS.items():
            keys = [entry[key] for entry in container.get(member, [])]
            assert len(keys) == len(set(keys)), f"{member} contains a key twice"


@given(patches)
def test_fields_that_the_patch_does_not_name_stay(patch: dict[str, Any]) -> None:
    merged = merge_template(BASE, patch)
    spec = patch.get("spec", {})
    for member in BASE["spec"].keys() - spec.keys():
        assert merged["spec"][member] == BASE["spec"][member]
    named = {e["name"] for c in spec.get("containers", []) if c["name"] == "main" for e in c.get("env", [])}
    env = {e["name"]: e for e in merged["spec"]["containers"][0]["env"]}
    assert all(env[e["name"]] == e for e in BASE["spec"]["containers"][0]["env"] if e["name"] not in named)


def test_an_empty_patch_changes_nothing() -> None:
    assert merge_template(BASE, {}) == merge_template(BASE, {"spec": {}, "metadata": {}}) == BASE
