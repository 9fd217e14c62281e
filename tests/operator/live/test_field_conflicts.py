"""Tests of other clients and webhooks that keep changing what the operator wrote, on a real API server."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.cluster import ApiError, ApiServer, Kube
from tests.operator.live.objects import Obj, demo, read, wait_condition, wait_settled
from tests.operator.live.process import ACCOUNT
from tests.operator.live.webhook import mutating_webhook
from unmask_operator.objects import SERVICE_LABEL

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("operator")]

IMAGE = "registry.example.com/rewritten:1"
MANAGER = "argocd-controller"


def deployment(admin: Kube, namespace: str) -> Obj:
    found: Obj = admin.get("apps/v1", "Deployment", "demo", namespace)
    return found


def main(pod: Obj) -> Obj:
    return next(c for c in pod["spec"]["containers"] if c["name"] == "main")


def writes(api_server: ApiServer, namespace: str) -> int:
    """Returns the number of the operator's requests that changed the Deployment."""
    events = api_server.requests(f"system:serviceaccount:{namespace}:{ACCOUNT}")
    refs = [event.get("objectRef", {}) | {"uri": event["requestURI"]} for event in events if event["verb"] == "patch"]
    return sum(ref.get("resource") == "deployments" and "dryRun" not in ref["uri"] for ref in refs)


def set_image(kube: Kube, namespace: str) -> None:
    containers = [{"name": "main", "image": IMAGE}]
    _apply(kube, namespace, {"spec": {"template": {"spec": {"containers": containers}}}})


def set_label(kube: Kube, namespace: str) -> None:
    _apply(kube, namespace, {"metadata": {"labels": {"app.kubernetes.io/managed-by": "argocd"}}})


def _apply(kube: Kube, namespace: str, members: Obj) -> None:
    meta = {"name": "demo", "namespace": namespace, **members.pop("metadata", {})}
    kube.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, **members}, manager=MANAGER)


def set_replicas(kube: Kube, namespace: str) -> None:
    path = kube.path("apps/v1", "Deployment", namespace, "demo", "scale")
    content = "application/merge-patch+json"
    kube.request("PATCH", path, {"spec": {"replicas": 5}}, content=content, fieldManager="kube-controller-manager")


def has_image(live: Obj) -> bool:
    return bool(main(live["spec"]["template"])["image"] == IMAGE)


def has_label(live: Obj) -> bool:
    return bool(live["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "argocd")


def has_replicas(live: Obj) -> bool:
    return bool(live["spec"]["replicas"] == 5)


CASES: dict[str, tuple[Callable[[Kube, str], None], Callable[[Obj], bool], str, str]] = {
    "a GitOps tool sets the image": (set_image, has_image, "spec.template.spec.containers[main].image", MANAGER),
    "a GitOps tool sets a label": (set_label, has_label, "metadata.labels[app.kubernetes.io/managed-by]", MANAGER),
    "an HPA of the Deployment": (set_replicas, has_replicas, "spec.replicas", "kube-controller-manager"),
}


@contextlib.contextmanager
def opponent(api_server: ApiServer, namespace: str, change: Any, changed: Any) -> Iterator[threading.Event]:
    """Starts another client that changes the Deployment whenever it is as the operator wrote it."""
    ended = threading.Event()
    kube = api_server.admin()

    def run() -> None:
        while not ended.wait(0.1):
            with contextlib.suppress(ApiError):
                if not changed(deployment(kube, namespace)):
                    change(kube, namespace)

    thread = threading.Thread(target=run, name="opponent", daemon=True)
    thread.start()
    try:
        yield ended
    finally:
        ended.set()
        thread.join()
        kube.close()


@pytest.mark.parametrize(("change", "changed", "field", "manager"), CASES.values(), ids=CASES)
def test_a_field_that_another_client_keeps_changing_is_reported(
    api_server: ApiServer, admin: Kube, namespace: str, change: Any, changed: Any, field: str, manager: str
) -> None:
    resource = admin.create(demo(namespace, replicas=2))
    wait_condition(admin, resource, "Accepted", "True")
    wait_settled(admin, namespace)
    with opponent(api_server, namespace, change, changed) as ended:
        found = wait_condition(admin, resource, "UpToDate", "False", "FieldConflict", field)
        assert "Deployment demo" in found["message"]
        assert manager in found["message"]
        (event,) = admin.events(namespace, "FieldConflict")
        assert event["type"] == "Warning"
        assert event["note"] == found["message"]
        before = writes(api_server, namespace)
        wait_settled(admin, namespace)  # the conflict does not delay other resources
        assert writes(api_server, namespace) - before <= 4
        admin.patch(resource, {"spec": {"suspend": True}})
        admin.wait("suspended by an edit", lambda: writes(api_server, namespace) > before)
        admin.patch(resource, {"spec": {"suspend": False}})
        ended.set()
    wait_condition(admin, resource, "UpToDate", "True")
    live = deployment(admin, namespace)
    assert not changed(live)
    assert live["spec"]["replicas"] == 2


def set_alternatives(live: Obj) -> None:
    """Changes a container's port, the handler of its probe and the source of a volume."""
    engine, spec = main(live["spec"]["template"]), live["spec"]["template"]["spec"]
    engine["ports"][0]["containerPort"] = 8001
    del engine["readinessProbe"]["httpGet"]
    engine["readinessProbe"]["exec"] = {"command": ["true"]}
    volume = next(volume for volume in spec["volumes"] if "emptyDir" in volume)
    del volume["emptyDir"]
    volume["hostPath"] = {"path": "/tmp"}


def put(kube: Kube, obj: Obj, change: Callable[[Obj], None]) -> None:
    """Replaces an object as `kubectl edit` does, so that a union member that is no longer set is removed."""
    changed = copy.deepcopy(obj)
    change(changed)
    changed["metadata"].pop("managedFields")
    path = kube.path(obj["apiVersion"], obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"])
    kube.request("PUT", path, changed)


def test_alternatives_that_another_client_set_are_replaced(admin: Kube, namespace: str) -> None:
    """Checks that the other members are removed.

    Server-side apply alone would keep them next to the desired members, and the API server rejects that.
    """
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Accepted", "True")
    wait_settled(admin, namespace)
    template = deployment(admin, namespace)["spec"]["template"]
    service = admin.get("v1", "Service", "demo", namespace)["spec"]["ports"]
    budget = admin.get("policy/v1", "PodDisruptionBudget", "demo-engine", namespace)["spec"]

    def budget_of(live: Obj) -> None:
        live["spec"]["minAvailable"] = live["spec"].pop("maxUnavailable")

    for _ in range(2):  # managedFields after the creation of a child differ from those after a repair
        put(admin, deployment(admin, namespace), set_alternatives)
        admin.wait("the template is back", lambda: deployment(admin, namespace)["spec"]["template"] == template)
        live = admin.get("v1", "Service", "demo", namespace)
        put(admin, live, lambda live: live["spec"]["ports"][0].update(port=8080))
        admin.wait(
            "the ports are back", lambda: admin.get("v1", "Service", "demo", namespace)["spec"]["ports"] == service
        )
        put(admin, admin.get("policy/v1", "PodDisruptionBudget", "demo-engine", namespace), budget_of)
        admin.wait(
            "the budget is back",
            lambda: admin.get("policy/v1", "PodDisruptionBudget", "demo-engine", namespace)["spec"] == budget,
        )
    admin.patch(resource, {"spec": {"service": {"port": 81}}})
    admin.wait(
        "an edit moves the port",
        lambda: [p["port"] for p in admin.get("v1", "Service", "demo", namespace)["spec"]["ports"]] == [81],
    )
    wait_condition(admin, resource, "Accepted", "True")


def rewrite(deployment: Obj) -> list[Obj]:
    path = "/spec/template/spec/containers/0/image"
    return [{"op": "replace", "path": path, "value": IMAGE}]


def test_a_webhook_that_rewrites_images_of_deployments(api_server: ApiServer, admin: Kube, namespace: str) -> None:
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "UpToDate", "True")
    with mutating_webhook(admin, namespace, "apps", "deployments", rewrite):
        admin.wait("the webhook is called", lambda: _is_rewritten(admin, namespace))
        found = wait_condition(admin, resource, "UpToDate", "False", "FieldConflict")
        assert (
            "Deployment demo: an admission webhook changes spec.template.spec.containers[main].image"
            in found["message"]
        )
        (event,) = admin.events(namespace, "FieldConflict")
        assert event["note"] == found["message"]
        admin.wait("the image that pods get", lambda: read(admin, resource)["status"]["resolvedImage"] == IMAGE)
        before = writes(api_server, namespace)
        for _ in range(3):
            wait_settled(admin, namespace)
        assert writes(api_server, namespace) - before <= 4 + 3 * 3, (
            "the Deployment was repaired too often; the sentinels account for 9 writes"
        )
        admin.patch(resource, {"spec": {"replicas": 3}})
        admin.wait("an edit is written", lambda: deployment(admin, namespace)["spec"]["replicas"] == 3)
    wait_condition(admin, resource, "UpToDate", "True")
    assert not has_image(deployment(admin, namespace))


def _is_rewritten(admin: Kube, namespace: str) -> bool:
    """Attempts a change of the Deployment and returns whether the webhook rewrote it.

    The API server receives the webhook through a watch, so the first changes may not be rewritten.
    """
    admin.patch(deployment(admin, namespace), {"metadata": {"labels": {"app.kubernetes.io/managed-by": "probe"}}})
    return has_image(deployment(admin, namespace))


def inject(pod: Obj) -> list[Obj]:
    sidecar = {"name": "istio-proxy", "image": "registry.example.com/proxy:1"}
    return [
        {"op": "replace", "path": "/spec/containers/0/image", "value": IMAGE},
        {"op": "add", "path": "/spec/containers/-", "value": sidecar},
    ]


def test_a_webhook_that_changes_only_pods_is_reported(admin: Kube, namespace: str) -> None:
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "UpToDate", "True")
    template = deployment(admin, namespace)["spec"]["template"]
    planned = main(template)["image"]
    assert read(admin, resource)["status"]["resolvedImage"] == planned
    with mutating_webhook(admin, namespace, "", "pods", inject):
        meta = {**template["metadata"], "name": "demo-p1", "namespace": namespace}
        spec = {**template["spec"], "nodeName": "somewhere", "serviceAccountName": "default"}
        probe = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}

        def injected() -> bool:
            pod = admin.create(probe)
            if len(pod["spec"]["containers"]) > len(template["spec"]["containers"]):
                return True
            admin.delete(pod, gracePeriodSeconds=0)
            return False

        admin.wait("the webhook is called", injected)
    assert meta["labels"][SERVICE_LABEL] == "demo"
    found = wait_condition(admin, resource, "UpToDate", "True", says="istio-proxy")
    assert f"container main has the image {IMAGE} instead of {planned}" in found["message"]
    assert read(admin, resource)["status"]["resolvedImage"] == IMAGE
