"""Tests of engines over several pods on a real API server with the real CRD. They play the controller of the CRD."""

from collections.abc import Iterator

import pytest

from e2e.cluster import ApiServer, Kube
from e2e.cluster.operator_process import OperatorProcess, install
from tests.operator.live.objects import Obj, accepted, condition, demo, lws_crd, read, wait_condition
from tests.operator.samples import make, observe
from tests.operator.test_groups import play, state
from unmask_operator.kinds import LEADER_WORKER_SETS

pytestmark = pytest.mark.cluster

GROUP: Obj = {"gpu": {}, "parallelism": {"tensor": 4, "nodes": 2}}
FULL: Obj = {
    "gpu": {"deviceClassName": "gpu.example.com"},
    "parallelism": {"tensor": 16, "nodes": 16, "expert": 16, "topologyKey": "example.com/rack"},
    "rolloutStrategy": {"maxSurge": "25%", "maxUnavailable": 1},
    "commonAnnotations": {"a": "b"},
    "sharedMemorySize": "1Gi",
    "resources": {"limits": {"cpu": "500m", "memory": "2Gi"}},
}


@pytest.fixture
def crd(admin: Kube) -> Iterator[Obj]:
    found = lws_crd()
    admin.define(found)
    yield found
    admin.undefine(found)


@pytest.mark.usefixtures("crd")
def test_every_rendered_set_is_valid(admin: Kube, namespace: str) -> None:
    for spec in (GROUP, FULL):
        resource = demo(namespace, **spec)
        resource["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
        made = [child for child in make(observe(resource)).children if child["kind"] == "LeaderWorkerSet"]
        assert len(made) == 1
        admin.create(made[0], dryRun="All", fieldValidation="Strict")


def test_the_status_follows_groups_and_the_crd(api_server: ApiServer, admin: Kube, namespace: str, crd: Obj) -> None:
    install(api_server, admin, namespace, [namespace])
    with OperatorProcess(api_server, namespace, [namespace]) as operator:
        resource = accepted(admin, demo(namespace, **GROUP))
        live = admin.get(LEADER_WORKER_SETS.api_version, LEADER_WORKER_SETS.kind, "demo-group", namespace)
        for pod in play(observe(resource), state(), state(), namespace=namespace):
            pod["metadata"] = {k: v for k, v in pod["metadata"].items() if k not in ("uid", "creationTimestamp")}
            status = pod.pop("status")
            admin.patch(
                admin.create({"apiVersion": "v1", "kind": "Pod", **pod}), {"status": status}, subresource="status"
            )
        wait_condition(admin, resource, "Ready", "True")
        found = read(admin, resource)["status"]
        assert (found["replicas"], found["readyReplicas"]) == (1, 1), "a worker is no replica"
        scale = admin.get(resource["apiVersion"], resource["kind"], "demo", namespace, "scale")
        assert scale["status"]["selector"].endswith("serving.unmask.dev/role=leader")
        assert operator.metric('unmask_operator_writes_total{verb="apply"}') == 0, "defaults of the CRD are no drift"
        admin.undefine(crd)
        admin.patch(resource, {"spec": {"replicas": 2}})
        wait_condition(admin, resource, "Accepted", "False", "MissingCRD", "leaderworkersets.leaderworkerset.x-k8s.io")
        admin.define(crd)
        wait_condition(admin, resource, "Accepted", "True")
        kind = (LEADER_WORKER_SETS.api_version, LEADER_WORKER_SETS.kind, "demo-group", namespace)
        again = admin.wait("the set after its CRD", lambda: admin.find(*kind))
        assert (again["spec"]["replicas"], again["metadata"]["uid"] != live["metadata"]["uid"]) == (2, True)
        assert condition(admin, resource, "Accepted")["status"] == "True"
