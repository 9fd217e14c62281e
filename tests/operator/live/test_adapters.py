"""Tests of adapter lists that change while pods serve, with a real controller-manager and simulated pods."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster import ApiServer, Kube
from e2e.cluster.operator_process import OperatorProcess, cluster_wide
from tests.operator.live.kubelet import bind, engine, first_pod, make_node, run
from tests.operator.live.objects import Obj, condition, demo, read, wait_condition
from unmask_operator.controller.adapters import LIST_HASH

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("operator")]

ROMAN = {"name": "roman", "uri": "demo://roman"}
LEGAL = {"name": "legal", "uri": "hf://org/legal", "revision": "v2"}
WRONG = {"name": "wrong", "uri": "hf://org/of-another-model"}


@pytest.fixture(scope="module")
def operator(controlled_api_server: ApiServer, controlled_admin: Kube) -> Iterator[OperatorProcess]:
    """Yields one operator of the whole cluster for all tests of the module."""
    yield from cluster_wide(controlled_api_server, controlled_admin)


def listed(kube: Kube, resource: Obj) -> Any:
    meta = resource["metadata"]
    return kube.get("v1", "ConfigMap", f"{meta['name']}-adapters", meta["namespace"]).get("data")


def workload(kube: Kube, resource: Obj) -> Obj:
    return kube.get("apps/v1", "Deployment", resource["metadata"]["name"], resource["metadata"]["namespace"])


def annotated_list(kube: Kube, pod: Obj) -> Any:
    """Returns the hash of the adapter list in the pod's annotation, which the operator sets."""
    meta = pod["metadata"]
    return (kube.get("v1", "Pod", meta["name"], meta["namespace"])["metadata"].get("annotations") or {}).get(LIST_HASH)


class PodEvent:
    """Callable that returns the engine's answer: all listed adapters are ready, except WRONG, which failed."""

    def __init__(self, kube: Kube, resource: Obj) -> None:
        self._of = kube, resource

    def __call__(self) -> str:
        states: dict[str, Obj] = {}
        for name, uri in (listed(*self._of) or {}).items():
            states[name] = {"state": "ready", "uri": uri}
            if name == "wrong":
                states[name] |= {"state": "failed", "message": "tensor 'x' is none of this model's"}
        return json.dumps({"status": "started", "adapters": states})


def test_adapters_are_added_and_removed_while_the_pod_serves(
    operator: OperatorProcess, controlled_admin: Kube, controlled_namespace: str
) -> None:
    admin, namespace = controlled_admin, controlled_namespace
    node = make_node(admin, "0")
    resource = admin.create(demo(namespace, lora={"adapters": [ROMAN]}))
    wait_condition(admin, resource, "Accepted", "True")
    with engine({"/startup": PodEvent(admin, resource)}) as address:
        pod = first_pod(admin, resource)
        assert listed(admin, resource) == {"roman": "demo://roman"}
        bind(admin, pod, node)
        run(admin, pod, address, started=True, ready=True)
        wait_condition(admin, resource, "AdaptersLoaded", "True")
        before = workload(admin, resource)["metadata"]["generation"]
        first = admin.wait("the kubelet is told of the list", lambda: annotated_list(admin, pod))

        admin.patch(resource, {"spec": {"lora": {"adapters": [ROMAN, LEGAL, WRONG]}}})
        admin.wait("the kubelet is told of another", lambda: annotated_list(admin, pod) != first)
        message = wait_condition(admin, resource, "AdaptersLoaded", "False", "AdapterFailed")["message"]
        assert "wrong in 1 of 1 pods: tensor 'x' is none of this model's" in message
        wait_condition(admin, resource, "Ready", "True")
        status = read(admin, resource)["status"]
        assert status["adapters"] == [
            {"name": "roman", "ready": 1, "total": 1, "failed": 0},
            {"name": "legal", "ready": 1, "total": 1, "failed": 0},
            {"name": "wrong", "ready": 0, "total": 1, "failed": 1, "message": "tensor 'x' is none of this model's"},
        ]
        assert listed(admin, resource)["legal"] == "hf://org/legal@v2"

        admin.patch(resource, {"spec": {"lora": {"adapters": [LEGAL]}}})
        wait_condition(admin, resource, "AdaptersLoaded", "True")
        assert listed(admin, resource) == {"legal": "hf://org/legal@v2"}, (
            "the ConfigMap still has adapters that the spec no longer lists"
        )
        assert [one["name"] for one in read(admin, resource)["status"]["adapters"]] == ["legal"]

        admin.patch(resource, {"spec": {"lora": {"adapters": []}}})
        admin.wait("no word of adapters", lambda: "adapters" not in read(admin, resource)["status"])
        assert condition(admin, resource, "AdaptersLoaded") == {}
        assert workload(admin, resource)["metadata"]["generation"] == before, (
            "the Deployment has changed, so its pods are replaced"
        )
        assert first_pod(admin, resource)["metadata"]["uid"] == pod["metadata"]["uid"]
    assert len(admin.events(namespace, "AdapterFailed")) == 1
    admin.delete(node)
    assert "Traceback" not in operator.log()


def test_a_list_changes_under_an_operator_that_renders_another_pod_template(
    operator: OperatorProcess, controlled_admin: Kube, controlled_namespace: str
) -> None:
    """Checks this with a newest revision that this operator would not render: it has one more environment variable."""
    admin = controlled_admin
    resource = admin.create(demo(controlled_namespace, lora={"maxAdapters": 2, "adapters": [ROMAN]}))
    wait_condition(admin, resource, "Accepted", "True")
    ours = admin.get("apps/v1", "ControllerRevision", "demo-r1", controlled_namespace)
    theirs = copy.deepcopy(ours)
    theirs["data"]["template"]["spec"]["containers"][0]["env"].append({"name": "OF_ANOTHER", "value": "1"})
    owner_metadata = {member: ours["metadata"][member] for member in ("namespace", "labels", "ownerReferences")}
    admin.create({**theirs, "metadata": {**owner_metadata, "name": "demo-r2"}, "revision": 2})
    wait_condition(admin, resource, "UpToDate", "False", "OperatorUpgraded")
    before = workload(admin, resource)
    assert "OF_ANOTHER" in str(before["spec"]["template"])

    admin.patch(resource, {"spec": {"lora": {"adapters": [ROMAN, LEGAL]}}})
    admin.wait("the list", lambda: "legal" in listed(admin, resource))
    wait_condition(admin, resource, "UpToDate", "False", "OperatorUpgraded")
    assert workload(admin, resource)["spec"]["template"] == before["spec"]["template"]
    admin.patch(resource, {"spec": {"lora": {"maxAdapters": 3}}})
    admin.wait("more room", lambda: "--max-loras=3" in str(workload(admin, resource)["spec"]["template"]))
    assert "Traceback" not in operator.log()
