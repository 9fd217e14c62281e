"""Tests of an operator upgrade while services run: it restarts no engine, reports pending changes, and reconciles."""

from __future__ import annotations

import pytest

from e2e.cluster import Kube
from e2e.cluster.install import REGISTRY
from e2e.cluster.kube import Obj
from e2e.load import ENOUGH, load
from e2e.release import Release
from e2e.services import (
    LABEL,
    POD_TIMEOUT,
    ask,
    condition,
    demo,
    engines,
    get,
    kubectl,
    patch,
    pods,
    wait_condition,
)

# The newer chart renders one more variable, and another default image. That is the same image under another name, so
# that it is on every node that has the first one.
VARIABLE = "E2E_NEWER"


@pytest.fixture
def newer(release: Release) -> dict[str, object]:
    assert release.values["global"]["imageRegistry"] == REGISTRY
    return {f"engine.env.{VARIABLE}": "yes", "global.imageRegistry": REGISTRY.removesuffix("/library")}


def addresses(kube: Kube, namespace: str, name: str) -> str:
    """Returns the log line of the service's only engine with the addresses on which it listens.

    Checks that neither its command line nor its environment in the pod sets an address, so that the image's default
    applies.
    """
    (pod,) = [pod for pod in pods(kube, namespace, name) if "deletionTimestamp" not in pod["metadata"]]
    container = pod["spec"]["containers"][0]
    assert not [argument for argument in container["args"] if argument.startswith("--host")]
    assert not [variable for variable in container["env"] if variable["name"].endswith("_HOST")]
    log = kubectl("logs", pod["metadata"]["name"], "-c", container["name"], namespace=namespace)
    return next(line for line in log.splitlines() if "listening on" in line)


def main(kube: Kube, namespace: str, name: str) -> tuple[str, bool]:
    """Returns the image of a service's only engine that is not being deleted, and whether it has the new variable."""
    (pod,) = [pod for pod in pods(kube, namespace, name) if "deletionTimestamp" not in pod["metadata"]]
    container = pod["spec"]["containers"][0]
    return container["image"], VARIABLE in {variable["name"] for variable in container["env"]}


# Sections that do not affect the pod template (of `lora`: the list of adapters). Although the newer operator renders
# another pod template, an edit of these sections must not apply it.
OUTSIDE_POD_TEMPLATE: dict[str, Obj] = {
    "autoscaling": {"minReplicas": 1, "maxReplicas": 1, "targets": {"queuedRequestsPerReplica": 4}},
    "podDisruptionBudget": {"minAvailable": 1},
    "networkPolicy": {"from": [{"namespaceSelector": {}}]},
    "rolloutStrategy": {"maxSurge": 0, "maxUnavailable": 1},
    "serviceAccount": {"annotations": {"somebody": "asks"}},
    "startupProbe": {},
    "lora": {"adapters": [{"name": "roman", "uri": "demo://roman"}]},
    "service": {"port": 8080},
}


def test_edits_outside_the_pod_template_restart_no_pods_under_another_operator(
    kube: Kube, namespace: str, release: Release, newer: dict[str, object]
) -> None:
    """No request of 20 clients fails from before the upgrade until after the rollback.

    They use a separate Service, as an Ingress may send requests directly to pods, because an edit of the port removes
    the old port of the operator's Service. Four more clients use the operator's Service before and after that edit.
    """
    adapters: Obj = {"lora": {"maxAdapters": 1}}
    kube.create(demo(namespace, spec={"resources": {"requests": {"cpu": "100m"}}, "suspend": True} | adapters))
    wait_condition(kube, namespace, "Accepted")
    patch(kube, namespace, {"engine": {"maxNumReqs": 12}, "suspend": False})
    wait_condition(kube, namespace)
    front(kube, namespace)
    before, (first, second) = engines(kube, namespace), pins(kube, namespace).items()
    with load(kube, namespace, at="front") as under:
        with load(kube, namespace, called="beside", clients=4) as report:
            release.upgrade(newer)
            wait_condition(kube, namespace, "UpToDate", "False", reason="OperatorUpgraded")
            for section, value in OUTSIDE_POD_TEMPLATE.items():
                if section == "service":
                    report.served()
                edit(kube, namespace, section, value)
        assert kube.get("v1", "Service", "demo", namespace)["spec"]["ports"][0]["port"] == 8080
        assert engines(kube, namespace) == before
        with load(kube, namespace, called="beside-8080", at="demo:8080", clients=4) as report:
            release.roll_back()
            wait_condition(kube, namespace, "UpToDate")
            report.served()
        under.served(ENOUGH)
    assert engines(kube, namespace) == before
    recorded = pins(kube, namespace)
    assert first in recorded.items(), "the previous revision was changed or deleted"
    assert recorded.popitem()[1]["template"] == second[1]["template"]


def edit(kube: Kube, namespace: str, section: str, value: Obj) -> None:
    patch(kube, namespace, {section: value})
    wait_condition(kube, namespace, "Accepted")
    wait_condition(kube, namespace, "RolloutComplete")


def front(kube: Kube, namespace: str) -> None:
    """Creates a Service `front` for the same pods, which the operator does not manage."""
    spec = {"selector": {LABEL: "demo"}, "ports": [{"port": 80, "targetPort": 8000}]}
    meta = {"name": "front", "namespace": namespace}
    kube.create({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec})


def pins(kube: Kube, namespace: str) -> dict[str, Obj]:
    """Returns the data of the service's ControllerRevisions by name, the oldest first."""
    found = kube.list("apps/v1", "ControllerRevision", namespace, labelSelector=f"{LABEL}=demo")
    return {one["metadata"]["name"]: one["data"] for one in sorted(found, key=lambda one: int(one["revision"]))}


@pytest.mark.smoke
def test_an_upgrade_and_a_downgrade_restart_no_engine(
    kube: Kube, namespace: str, release: Release, newer: dict[str, object]
) -> None:
    for name in ("still", "moved"):
        kube.create(demo(namespace, name, {"resources": {"requests": {"cpu": "100m"}}, "networkPolicy": {}}))
    for name in ("still", "moved"):
        wait_condition(kube, namespace, name=name)
    before, (old_image, _) = engines(kube, namespace), main(kube, namespace, "still")

    release.upgrade(newer)
    for name in ("still", "moved"):
        wait_condition(kube, namespace, "UpToDate", "False", name=name, reason="OperatorUpgraded")
        assert condition(get(kube, namespace, name), "Ready")["status"] == "True"
        assert "42" in ask(kube, namespace, name)
        assert "all IPv4" in addresses(kube, namespace, name)
    spoil(kube, namespace, "still")
    kube.wait("all is put right", lambda: not spoilt(kube, namespace, "still"), timeout=POD_TIMEOUT)
    assert engines(kube, namespace) == before

    restart(kube, namespace, "moved")
    wait_condition(kube, namespace, "UpToDate", name="moved")
    wait_condition(kube, namespace, name="moved")
    new_image, has_variable = main(kube, namespace, "moved")
    assert (new_image != old_image, has_variable) == (True, True)
    assert "all IPv4" in addresses(kube, namespace, "moved")
    assert main(kube, namespace, "still") == (old_image, False)
    kube.wait("the old pod is gone", lambda: len(engines(kube, namespace)) == 2, timeout=POD_TIMEOUT)
    before = engines(kube, namespace)

    release.restore()  # the older operator again
    wait_condition(kube, namespace, "UpToDate", "False", name="moved", reason="OperatorUpgraded")
    wait_condition(kube, namespace, "UpToDate", name="still")
    assert engines(kube, namespace) == before
    patch(kube, namespace, {"engine": {"maxNumReqs": 8}}, name="moved")
    wait_condition(kube, namespace, "UpToDate", name="moved")
    wait_condition(kube, namespace, name="moved")
    assert main(kube, namespace, "moved") == (old_image, False)
    assert "42" in ask(kube, namespace, "moved")


def restart(kube: Kube, namespace: str, name: str) -> None:
    """Restarts a service's pods as docs/operations/rolling-upgrade.md describes."""
    kube.patch(demo(namespace, name), {"metadata": {"annotations": {"serving.unmask.dev/restartedAt": "now"}}})


def spoil(kube: Kube, namespace: str, name: str) -> None:
    """Changes or deletes three children of the service, but not the pod template."""
    kube.patch(child(kube, "v1", "Service", namespace, name), {"spec": {"selector": {"somebody": "else"}}})
    kube.patch(child(kube, "apps/v1", "Deployment", namespace, name), {"spec": {"progressDeadlineSeconds": 1234}})
    kube.delete(child(kube, "networking.k8s.io/v1", "NetworkPolicy", namespace, name))


def spoilt(kube: Kube, namespace: str, name: str) -> bool:
    service = child(kube, "v1", "Service", namespace, name)
    deployment = child(kube, "apps/v1", "Deployment", namespace, name)
    return (
        service["spec"]["selector"] != {LABEL: name}
        or deployment["spec"]["progressDeadlineSeconds"] == 1234
        or not kube.list("networking.k8s.io/v1", "NetworkPolicy", namespace, labelSelector=f"{LABEL}={name}")
    )


def child(kube: Kube, api: str, kind: str, namespace: str, name: str) -> Obj:
    (one,) = kube.list(api, kind, namespace, labelSelector=f"{LABEL}={name}")
    return one
