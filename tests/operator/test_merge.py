"""Tests of the merge of podTemplate: examples of each rule, and invariants for any template."""

from typing import Any

import pytest

from unmask_operator.api import SpecError
from unmask_operator.objects import SERVICE_LABEL, Obj
from unmask_operator.render.merge import merge_template

HTTP = {"name": "http", "containerPort": 8000}
HOME, THREADS = {"name": "HOME", "value": "/tmp"}, {"name": "THREADS", "valueFrom": {"resourceFieldRef": {}}}
TMP, SHM = {"name": "tmp", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}
READY = {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 5}
GPU = {"key": "gpu", "operator": "Exists"}
ENGINE: Obj = {
    "name": "main", "image": "runtime:1", "args": ["--port", "8000"], "env": [HOME, THREADS], "ports": [HTTP],
    "volumeMounts": [TMP, SHM], "readinessProbe": READY,
}  # fmt: skip
MEMORY = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
BASE: Obj = {
    "metadata": {"labels": {SERVICE_LABEL: "demo", "team": "a"}},
    "spec": {"serviceAccountName": "demo-engine", "tolerations": [GPU],
             "volumes": [{"name": "tmp", "emptyDir": {}}, MEMORY], "containers": [ENGINE]},
}  # fmt: skip
DNS = [{"containerPort": 53, "name": "dns", "protocol": "UDP"}, {"containerPort": 53, "name": "dns-tcp"}]
SECRET = {"secretKeyRef": {"name": "s", "key": "k"}}
CLAIM = {"name": "tmp", "persistentVolumeClaim": {"claimName": "scratch"}}


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({"labels": {"team": None, "tier": "x"}}, {"labels": {SERVICE_LABEL: "demo", "tier": "x"}}),
        ({"annotations": {"a": "b", "c": None}}, {**BASE["metadata"], "annotations": {"a": "b"}}),
        ({"creationTimestamp": None}, BASE["metadata"]),  # generators of manifests write it
    ],
)
def test_metadata_merge(patch: Obj, expected: Obj) -> None:
    assert merge_template(BASE, {"metadata": patch})["metadata"] == expected


@pytest.mark.parametrize(
    ("member", "patch", "expected"),
    [
        ("serviceAccountName", None, None),
        ("nodeSelector", {"zone": "1", "old": None}, {"zone": "1"}),
        ("tolerations", [GPU, {"key": "spot"}], [GPU, {"key": "spot"}]),
        ("priority", 1, 1),
        ("containers", [{"name": "dns", "ports": DNS}], [ENGINE, {"name": "dns", "ports": DNS}]),
        # a volume of another kind replaces the kind, and one of the same kind merges
        ("volumes", [CLAIM], [CLAIM, MEMORY]),
        ("volumes", [{"name": "shm", "emptyDir": {"sizeLimit": "8Gi"}}],
         [{"name": "tmp", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}]),
    ],
)  # fmt: skip
def test_members_of_the_spec_merge(member: str, patch: Any, expected: Any) -> None:
    assert merge_template(BASE, {"spec": {member: patch}})["spec"].get(member) == expected


@pytest.mark.parametrize(
    ("member", "patch", "expected"),
    [
        ("workingDir", "/srv", "/srv"),
        ("volumeMounts", [{"mountPath": "/tmp", "subPath": "x"}], [{**TMP, "subPath": "x"}, SHM]),
        ("ports", DNS, [HTTP, *DNS]),
        # a variable has a value or a source, and a probe one handler
        ("env", [{"name": "THREADS", "value": "3"}], [HOME, {"name": "THREADS", "value": "3"}]),
        ("env", [{"name": "HOME", "valueFrom": SECRET}], [{"name": "HOME", "valueFrom": SECRET}, THREADS]),
        ("readinessProbe", {"exec": {}}, {"exec": {}, "periodSeconds": 5}),
        ("readinessProbe", {"periodSeconds": 9}, {**READY, "periodSeconds": 9}),
        # a null that leaves only the key removes the entry
        ("env", [{"name": "THREADS", "valueFrom": None}], [HOME]),
        ("env", [{"name": "THREADS", "value": None}], [HOME]),
        ("env", [{"name": "THREADS"}], [HOME, THREADS]),
        ("volumeMounts", [{"mountPath": "/tmp", "name": None}], [SHM]),
    ],
)
def test_members_of_the_engine_merge(member: str, patch: Any, expected: Any) -> None:
    containers = [{"name": "proxy"}, {"name": "main", member: patch}]
    merged = merge_template(BASE, {"spec": {"containers": containers}})["spec"]["containers"]
    assert merged == [{**ENGINE, member: expected}, {"name": "proxy"}]


def of_main(**members: Any) -> Obj:
    return {"containers": [{"name": "main", **members}]}


def labels(value: Any) -> Obj:
    return {"metadata": {"labels": value}}


TWO_PORTS = [{"containerPort": 1}, {"containerPort": 1, "protocol": "TCP"}]
INVALID: list[tuple[Obj, str, str]] = [
    (labels({SERVICE_LABEL: "x"}), "metadata.labels", SERVICE_LABEL),
    (labels({SERVICE_LABEL: None}), "metadata.labels", SERVICE_LABEL),
    (labels(None), "metadata.labels", "remove the null"),
    (labels([]), "metadata.labels", "must be a map"),
    ({"metadata": {"name": "x"}}, "metadata.name", "only labels and annotations"),
]
INVALID_SPECS: list[tuple[Obj, str, str]] = [
    ({"containers": None}, "containers", "remove the null"),
    ({"containers": {"main": {}}}, "containers", "must be a list"),
    ({"containers": [{"image": "x"}]}, "containers[0]", "has no name"),
    ({"initContainers": ["x"]}, "initContainers[0]", "has no name"),
    ({"hostAliases": [{"ip": "::1"}, {"ip": "::1"}]}, "hostAliases[1]", "second entry with ip ::1"),
    ({"tolerations": {"key": "x"}}, "tolerations", "must be a list"),
    ({"volumes": [{"name": "shm", "emptyDir": "8Gi"}]}, "volumes[shm].emptyDir", "must be a map"),
    (of_main(args=[]), "containers[main].args", "use spec.engine"),
    (of_main(command=None), "containers[main].command", "use spec.image"),
    (of_main(image="x"), "containers[main].image", "use spec.image"),
    (of_main(ports=None), "containers[main].ports", "remove the null"),
    (of_main(ports=[{"containerPort": 8000}]), "containers[main].ports", "use another port"),
    (of_main(ports=[{"containerPort": 1, "name": "http"}]), "containers[main].ports", "use another port"),
    (of_main(ports=TWO_PORTS), "containers[main].ports[1]", "second entry with containerPort 1 TCP"),
    (of_main(env=[{"value": "x"}]), "containers[main].env[0]", "has no name"),
    (of_main(env=[{"name": "A", "value": "1"}, {"name": "A"}]), "containers[main].env[1]", "second entry with name A"),
    (of_main(readinessProbe=["/x"]), "containers[main].readinessProbe", "must be a map"),
]
INVALID += [({"spec": patch}, f"spec.{field}", part) for patch, field, part in INVALID_SPECS]


@pytest.mark.parametrize(("patch", "field", "part"), INVALID)
def test_an_invalid_template_is_rejected_with_its_field(patch: Obj, field: str, part: str) -> None:
    with pytest.raises(SpecError) as caught:
        merge_template(BASE, patch)
    assert caught.value.field == f"spec.podTemplate.{field}"
    assert part in caught.value.message
