"""Tests of other clients that change what the operator wrote, on a real API server."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator

import pytest

from e2e.cluster import ApiError, ApiServer, Kube
from e2e.cluster.operator_process import ACCOUNT
from tests.operator.live.objects import Obj, accepted, demo, wait_condition, wait_settled

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
    spec = {"template": {"spec": {"containers": [{"name": "main", "image": IMAGE}]}}}
    meta = {"name": "demo", "namespace": namespace}
    kube.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}, manager=MANAGER)


def has_image(live: Obj) -> bool:
    return bool(main(live["spec"]["template"])["image"] == IMAGE)


@contextlib.contextmanager
def opponent(api_server: ApiServer, namespace: str) -> Iterator[None]:
    """Starts another client that sets its image whenever the Deployment is as the operator wrote it."""
    ended = threading.Event()
    kube = api_server.admin()

    def run() -> None:
        while not ended.wait(0.1):
            with contextlib.suppress(ApiError):
                if not has_image(deployment(kube, namespace)):
                    set_image(kube, namespace)

    thread = threading.Thread(target=run, name="opponent", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        kube.close()


def test_a_field_that_another_client_keeps_changing_is_reported(
    api_server: ApiServer, admin: Kube, namespace: str
) -> None:
    resource = accepted(admin, demo(namespace))
    wait_settled(admin, namespace)
    with opponent(api_server, namespace):
        field = "spec.template.spec.containers[main].image"
        found = wait_condition(admin, resource, "UpToDate", "False", "FieldConflict", field)
        assert "Deployment demo" in found["message"]
        assert MANAGER in found["message"]
        (event,) = admin.events(namespace, "FieldConflict")
        assert (event["type"], event["note"]) == ("Warning", found["message"])
        before = writes(api_server, namespace)
        wait_settled(admin, namespace)  # the conflict does not delay other resources
        assert writes(api_server, namespace) - before <= 4
        admin.patch(resource, {"spec": {"suspend": True}})
        admin.wait("an edit is written", lambda: deployment(admin, namespace)["spec"]["replicas"] == 0)


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
    """Checks this because server-side apply alone keeps them next to the desired ones, which the API server rejects."""
    resource = accepted(admin, demo(namespace))
    wait_settled(admin, namespace)
    template = deployment(admin, namespace)["spec"]["template"]

    def service() -> Obj:
        found: Obj = admin.get("v1", "Service", "demo", namespace)
        return found

    ports = service()["spec"]["ports"]
    for _ in range(2):  # managedFields after the creation of a child differ from those after a repair
        put(admin, deployment(admin, namespace), set_alternatives)
        admin.wait("the template is back", lambda: deployment(admin, namespace)["spec"]["template"] == template)
        put(admin, service(), lambda live: live["spec"]["ports"][0].update(port=8080))
        admin.wait("the ports are back", lambda: service()["spec"]["ports"] == ports)
    admin.patch(resource, {"spec": {"service": {"port": 81}}})
    admin.wait("an edit moves the port", lambda: [p["port"] for p in service()["spec"]["ports"]] == [81])
    wait_condition(admin, resource, "Accepted", "True")
