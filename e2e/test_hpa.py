"""Test of `provider: HPA`: a HorizontalPodAutoscaler scales a service by the metrics of a custom metrics adapter."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.cluster.pki import Authority
from e2e.scripts import PORT, script_pod, serve
from e2e.services import POD_TIMEOUT, condition, demo, get, pods, wait_condition

GROUP, VERSION = "custom.metrics.k8s.io", "v1beta2"
API = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService"}
REGISTERED = API | {"metadata": {"name": f"{VERSION}.{GROUP}"}}
OPERATOR = "unmask-operator"  # the operator's name as a field manager
RBAC = "rbac.authorization.k8s.io"
AT_ONCE = {"stabilizationWindowSeconds": 0, "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]}
SCALING = {
    "provider": "HPA",
    "minReplicas": 1,
    "maxReplicas": 2,
    "targets": {"queuedRequestsPerReplica": 4},
    "behavior": {"scaleUp": AT_ONCE, "scaleDown": AT_ONCE},
}


class Adapter:
    """Runs e2e/stubs/metrics.py as the cluster's custom metrics API."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube, self._namespace = kube, namespace

    def start(self) -> None:
        """Starts the adapter, registers it with the API server, and waits until its API is available."""
        meta = {"name": "metrics", "namespace": self._namespace}
        ca = Authority("custom metrics")
        pair = ca.issue("metrics", hosts=[f"metrics.{self._namespace}.svc"])
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "kubernetes.io/tls"}
        self._kube.create(secret | {"data": {"tls.crt": _text(pair.certificate), "tls.key": _text(pair.key)}})
        self._may_list_pods(meta)
        pod = script_pod(self._kube, self._namespace, "metrics", str(PORT))
        pod["spec"] |= {"serviceAccountName": "metrics", "automountServiceAccountToken": True}
        pod["spec"]["volumes"].append({"name": "tls", "secret": {"secretName": "metrics"}})
        pod["spec"]["containers"][0]["volumeMounts"].append({"name": "tls", "mountPath": "/tls"})
        serve(self._kube, pod, 443)
        self._kube.create(
            REGISTERED
            | {
                "spec": {
                    "group": GROUP,
                    "version": VERSION,
                    "service": meta,
                    "caBundle": _text(ca.certificate),
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                }
            }
        )
        name = REGISTERED["metadata"]["name"]
        self._kube.wait("the adapter's API", lambda: self._answers(name))

    def _answers(self, name: str) -> bool:
        return condition(self._kube.get(API["apiVersion"], API["kind"], name), "Available").get("status") == "True"

    def _may_list_pods(self, meta: Obj) -> None:
        self._kube.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
        self._kube.create({"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": meta, "rules": rules})
        bound = {"apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": meta}
        bound["roleRef"] = {"apiGroup": RBAC, "kind": "Role", "name": "metrics"}
        self._kube.create(bound | {"subjects": [{"kind": "ServiceAccount", **meta}]})

    def say(self, value: int) -> None:
        """Sets the number of waiting requests that the adapter reports for each pod."""
        proxy = self._kube.path("v1", "Service", self._namespace, "https:metrics:443", "proxy")
        self._kube.request("POST", f"{proxy}/value", {"value": str(value)})


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.fixture
def adapter(kube: Kube, namespace: str) -> Iterator[Adapter]:
    """Yields an adapter that is not started yet.

    Its API is unregistered before its pod is deleted, because an unavailable API blocks the deletion of namespaces.
    """
    if any(one["spec"].get("group") == GROUP for one in kube.list(API["apiVersion"], API["kind"])):
        pytest.skip("the cluster has a custom metrics adapter of its own")
    yield Adapter(kube, namespace)
    kube.delete(REGISTERED)


def test_the_horizontal_pod_autoscaler_scales_a_service(kube: Kube, namespace: str, adapter: Adapter) -> None:
    kube.create(demo(namespace, spec={"autoscaling": SCALING}))
    nobody = {"reason": "FailedGetPodsMetric", "says": "custom metrics API"}
    wait_condition(kube, namespace, "ScalingReady", "False", **nobody)
    kube.wait("the autoscaler's own words", lambda: quoted(kube, namespace))
    wait_condition(kube, namespace)  # the service serves although it cannot be scaled

    adapter.start()
    wait_condition(kube, namespace, "ScalingReady", "True", reason="Active")
    seen = [1]

    def settled(expected: int) -> bool:
        """Records changes of the Deployment's replicas. Returns whether all counts of replicas are `expected`."""
        deployment = kube.get("apps/v1", "Deployment", "demo", namespace)
        if (replicas := deployment["spec"]["replicas"]) != seen[-1]:
            seen.append(replicas)
        service = get(kube, namespace)
        counts = {service["spec"]["replicas"], service["status"]["readyReplicas"], len(pods(kube, namespace)), replicas}
        return counts == {expected}

    adapter.say(8)  # twice the target
    kube.wait("two replicas", lambda: settled(2), timeout=POD_TIMEOUT)
    adapter.say(0)
    kube.wait("one replica", lambda: settled(1), timeout=POD_TIMEOUT)
    assert seen == [1, 2, 1]
    writers = [
        (entry["manager"], entry.get("subresource"))
        for entry in get(kube, namespace)["metadata"]["managedFields"]
        if "f:replicas" in entry["fieldsV1"].get("f:spec", {})
    ]
    ((manager, subresource),) = writers
    assert subresource == "scale"
    assert manager != OPERATOR  # the program that contains the autoscaler has different names in different clusters


def quoted(kube: Kube, namespace: str) -> bool:
    """Returns whether ScalingReady has the HorizontalPodAutoscaler's message, which may change between two polls."""
    (hpa,) = kube.list("autoscaling/v2", "HorizontalPodAutoscaler", namespace)
    scaling = condition(get(kube, namespace), "ScalingReady")
    return bool(scaling["message"] == condition(hpa, "ScalingActive")["message"])
