"""Tests of refused specs and edits: the error states the cause, and running engines continue."""

from __future__ import annotations

import pytest
import yaml

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.services import API, KIND, condition, demo, get, kubectl, patch, pods, wait_condition

REFUSED = {
    "a name too long for a Service": ({}, "metadata.name must be at most 40 characters"),
    "an unknown source": ({"model": {"uri": "s3://bucket/model"}}, "must be demo://, hf://ORG/NAME or pvc://"),
    "a threshold over 1": ({"engine": {"thresholds": {"accept": 1.5}}}, "spec.engine.thresholds.accept"),
    "a typing error": ({"engine": {"maxNumRequests": 8}}, 'unknown field "spec.engine.maxNumRequests"'),
    "GPUs among the resources": ({"resources": {"limits": {"nvidia.com/gpu": 1}}}, "must not hold GPUs"),
    "an image without a version": ({"image": "team/runtime:latest"}, "needs a tag other than latest, or a digest"),
    "no way to roll out": (
        {"rolloutStrategy": {"maxSurge": 0, "maxUnavailable": 0}},
        "no pod can be replaced",
    ),
    "a flag of the operator's own": ({"engine": {"extraArgs": ["--port=1"]}}, "the operator itself sets or refuses"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_kubectl_apply_reports_what_is_wrong(namespace: str, kube: Kube, what: str) -> None:
    spec, message = REFUSED[what]
    name = "demo" if spec else "a" * 41
    output = kubectl(
        "apply", "-f", "-", namespace=namespace, stdin=yaml.safe_dump(demo(namespace, name, spec)), refused=True
    )
    assert message in output
    assert kube.list(API, KIND, namespace) == []


@pytest.mark.smoke
def test_a_spec_that_the_runtime_would_refuse_leaves_the_old_pod_serving(kube: Kube, namespace: str) -> None:
    kube.create(demo(namespace))
    wait_condition(kube, namespace, "Ready")
    (old,) = pods(kube, namespace)

    patch(kube, namespace, {"engine": {"extraArgs": ["--max-queue=many"]}})
    refused = wait_condition(kube, namespace, "Accepted", "False", reason="InvalidSpec", says="spec.engine.extraArgs")
    assert "--max-queue: 'many'" in refused["message"]
    wait_condition(kube, namespace, "Ready", "False", reason="InvalidSpec")
    assert condition(get(kube, namespace), "Available")["status"] == "True"
    assert [one["metadata"]["uid"] for one in pods(kube, namespace)] == [old["metadata"]["uid"]]

    patch(kube, namespace, {"engine": {"extraArgs": None}})
    wait_condition(kube, namespace, "Ready")
    assert [one["metadata"]["uid"] for one in pods(kube, namespace)] == [old["metadata"]["uid"]]


DEPLOYMENT = {
    "spec": {
        "replicas": 0,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "web:1"}]},
        },
    }
}
THEIRS: tuple[Obj, ...] = (
    {"apiVersion": "v1", "kind": "Service", "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}},
    {"apiVersion": "apps/v1", "kind": "Deployment", **DEPLOYMENT},
    {"apiVersion": "v1", "kind": "ServiceAccount", "automountServiceAccountToken": True},
)


def test_objects_of_other_owners_are_named_and_not_changed(kube: Kube, namespace: str) -> None:
    theirs = []
    for body in THEIRS:
        name = "demo-engine" if body["kind"] == "ServiceAccount" else "demo"
        theirs.append(kube.create({**body, "metadata": {"name": name, "namespace": namespace}}))
    kube.create(demo(namespace))
    refused = wait_condition(kube, namespace, "Ready", "False", reason="NameConflict")
    for one in theirs:
        assert f"{one['kind']} {one['metadata']['name']}" in refused["message"]
    assert "exist and are not controlled by this resource; delete them" in refused["message"]
    assert pods(kube, namespace) == []
    for one in theirs:
        now = kube.get(one["apiVersion"], one["kind"], one["metadata"]["name"], namespace)
        assert now["metadata"]["uid"] == one["metadata"]["uid"]
        assert "unmask-operator" not in {entry["manager"] for entry in now["metadata"]["managedFields"]}
        kube.delete(now)
    wait_condition(kube, namespace, "Scheduled")  # the operator does not watch these objects, so it checks every 30 s
