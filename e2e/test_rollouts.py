"""Tests that no request fails during changes that replace a service's pods."""

from __future__ import annotations

import pytest

from e2e.cluster import Kube
from e2e.cluster.config import environment
from e2e.cluster.kube import Obj
from e2e.load import ENOUGH, Load, load
from e2e.release import NAMESPACE, leader
from e2e.services import POD_TIMEOUT, demo, get, kubectl, patch, pods, wait_condition


def uids(kube: Kube, namespace: str) -> set[str]:
    return {one["metadata"]["uid"] for one in pods(kube, namespace)}


def main_container(pod: Obj) -> Obj:
    (found,) = (one for one in pod["spec"]["containers"] if one["name"] == "main")
    return dict(found)


def finish(kube: Kube, namespace: str, under: Load, old: set[str], before: int) -> list[Obj]:
    """Waits until a rollout is complete and the `old` pods are gone. Checks that no request has failed.

    Args:
        before: Number of requests that had ended when the rollout began.

    Returns:
        The main containers of the new pods.
    """
    wait_condition(kube, namespace, "RolloutComplete")
    wait_condition(kube, namespace, "Ready")
    kube.wait("the old pods' end", lambda: not old & uids(kube, namespace), timeout=POD_TIMEOUT)
    over = under.report()
    print(f"{over.requests - before} requests while the pods were replaced")
    report = under.wait_requests(max(0, before + ENOUGH - over.requests))
    assert not report.failed, report.failures
    service, now = get(kube, namespace), pods(kube, namespace)
    assert len(now) == service["spec"]["replicas"] == service["status"]["updatedReplicas"]
    return [main_container(pod) for pod in now]


def roll_out(kube: Kube, namespace: str, under: Load, change: Obj) -> list[Obj]:
    old, before = uids(kube, namespace), under.report().requests
    patch(kube, namespace, change)
    return finish(kube, namespace, under, old, before)


@pytest.mark.smoke
def test_new_arguments_and_images_fail_no_request(kube: Kube, namespace: str) -> None:
    kube.create(demo(namespace))
    wait_condition(kube, namespace)
    with load(kube, namespace) as under:
        (main,) = roll_out(kube, namespace, under, {"engine": {"thresholds": {"accept": 0.85}}})
        assert "--accept-threshold=0.85" in main["args"]

        (main,) = roll_out(kube, namespace, under, {"engine": {"maxNumReqs": 12}})
        assert {"--max-num-reqs=12", "--accept-threshold=0.85"} <= set(main["args"])

        if image := environment().runtime_next:
            (main,) = roll_out(kube, namespace, under, {"image": image})
            assert main["image"] == image
            assert get(kube, namespace)["status"]["resolvedImage"] == image
        assert not under.stop().failed
    if not image:
        pytest.skip("UNMASK_E2E_IMAGE_RUNTIME_NEXT names no second tag of the runtime's image; all but that passed")


def test_rollouts_without_surge_fail_no_requests(kube: Kube, namespace: str) -> None:
    """If the cluster has no capacity for one more pod, the remaining pods serve the load."""
    spec = {"replicas": 2, "rolloutStrategy": {"maxSurge": 0, "maxUnavailable": 1}}
    kube.create(demo(namespace, spec=spec))
    wait_condition(kube, namespace)
    with load(kube, namespace) as under:
        for main in roll_out(kube, namespace, under, {"engine": {"thresholds": {"accept": 0.85}}}):
            assert "--accept-threshold=0.85" in main["args"]
        assert not under.stop().failed


def test_a_rollout_completes_after_the_leader_is_killed(kube: Kube, namespace: str) -> None:
    """The leader is killed immediately after the edit, in any state of its writes, and does not release its Lease."""
    kube.create(demo(namespace))
    wait_condition(kube, namespace)
    killed = kube.wait("a leader", lambda: leader(kube))["metadata"]["name"]
    with load(kube, namespace) as under:
        old, before = uids(kube, namespace), under.report().requests
        patch(kube, namespace, {"engine": {"thresholds": {"accept": 0.85}}})
        kubectl("delete", "pod", killed, "--grace-period=0", "--force", namespace=NAMESPACE)
        (main,) = finish(kube, namespace, under, old, before)
        assert "--accept-threshold=0.85" in main["args"]
        assert not under.stop().failed

    def another_leads() -> bool:
        now = leader(kube)
        return now is not None and now["metadata"]["name"] != killed

    kube.wait("another leader", another_leads, timeout=POD_TIMEOUT)
