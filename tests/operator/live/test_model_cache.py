"""Test of spec.modelCache.pvc with a real Job controller. The test plays the node and the container of the download."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from e2e.cluster import ApiServer, Kube
from e2e.cluster.authorization import wait_allowed
from e2e.cluster.operator_process import ACCOUNT, EVERY_RULE, OperatorProcess, grant, install, reset_lease
from tests.operator.live.objects import Obj, condition, demo, read, wait_condition
from tests.operator.live.test_permissions import used
from tools.permissions import MODEL_CACHE_RULES
from unmask_operator.objects import controller_uid

pytestmark = pytest.mark.cluster
A, B = "a" * 40, "b" * 40
CACHE = {"model": {"uri": "hf://org/name"}, "modelCache": {"pvc": {"size": "1Gi"}}}


@pytest.fixture
def owner(controlled_api_server: ApiServer, controlled_admin: Kube, controlled_namespace: str) -> str:
    """Installs the operator with the permissions of modelCache.enabled. Returns the namespace."""
    admin, namespace = controlled_admin, controlled_namespace
    install(controlled_api_server, admin, namespace, [namespace])
    grant(admin, namespace, [namespace], [*EVERY_RULE, *MODEL_CACHE_RULES])
    user = f"system:serviceaccount:{namespace}:{ACCOUNT}"
    for rule in MODEL_CACHE_RULES:
        wait_allowed(admin, user, "create", group=rule.group, resource=rule.resource, namespace=namespace)
    return namespace


def test_pods_wait_for_the_job_and_a_useless_attempt_is_not_repeated(
    controlled_api_server: ApiServer, controlled_admin: Kube, owner: str
) -> None:
    admin, namespace = controlled_admin, owner

    def jobs() -> dict[str, Obj]:
        found = admin.list("batch/v1", "Job", namespace)
        return {job["metadata"]["name"]: job for job in found if "deletionTimestamp" not in job["metadata"]}

    def pod(other_than: set[str]) -> Obj:
        def new() -> Obj | None:
            found = admin.list("v1", "Pod", namespace, labelSelector="serving.unmask.dev/fetch=demo")
            live = (one for one in found if "deletionTimestamp" not in one["metadata"])
            return next((one for one in live if one["metadata"]["uid"] not in other_than), None)

        found = admin.wait("the Job's pod", new)
        other_than.add(found["metadata"]["uid"])
        return found

    def end(pod: Obj, code: int, **result: Any) -> None:
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "message": json.dumps(result)}
        ended |= dict.fromkeys(("startedAt", "finishedAt"), "2026-01-02T03:04:05Z")
        fetch = {"name": "fetch", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
        fetch["state"] = {"terminated": ended}
        phase = "Failed" if code else "Succeeded"
        admin.patch(pod, {"status": {"phase": phase, "containerStatuses": [fetch]}}, subresource="status")

    def deployment() -> Obj | None:
        return admin.find("apps/v1", "Deployment", "demo", namespace)

    def follows(commit: str) -> Callable[[], bool]:
        return lambda: bool((live := deployment()) and f"/{commit}'" in str(live["spec"]["template"]))

    seen: set[str] = set()
    with OperatorProcess(controlled_api_server, namespace, [namespace], model_cache="true") as operator:
        service = admin.create(demo(namespace, **CACHE))
        first = pod(seen)
        wait_condition(admin, service, "Accepted", "True")
        claim = admin.get("v1", "PersistentVolumeClaim", "demo-models", namespace)
        assert controller_uid(claim) == service["metadata"]["uid"]
        assert deployment() is None
        end(first, 2, reason="AccessDenied", message="a token is needed")
        wait_condition(admin, service, "ModelCached", "False", "AccessDenied", "a token is needed; to try again")
        assert condition(admin, service, "Stalled")["reason"] == "AccessDenied"
        (failed,) = jobs()

        admin.patch(service, {"spec": {"model": {"tokenSecretRef": {"name": "hub", "key": "token"}}}})
        end(pod(seen), 0, commit=A, bytes=10, files=2)
        admin.wait("the Deployment", follows(A))
        assert list(jobs()) == [failed], "the same source has a Job of the same name"
        wait_condition(admin, service, "ModelCached", "True", "Cached")
        cache = read(admin, service)["status"]["modelCache"]
        assert (cache["commit"], cache["bytes"], cache["percent"]) == (A, 10, 100)
        assert admin.events(namespace, "ModelCached")

        admin.patch(service, {"spec": {"model": {"revision": "v2"}}})
        second = pod(seen)
        operator.kill()  # the next leader continues with the same Job
        (same,) = jobs().keys() - {failed}  # which this leader may not have deleted yet
        end(second, 0, commit=B, bytes=10, files=2)
        reset_lease(admin, namespace)
        operator.start()
        admin.wait("the rollout", follows(B))
        admin.wait("no other Job", lambda: list(jobs()) == [same])
        account = f"system:serviceaccount:{namespace}:{ACCOUNT}"
        granted = {f"{r.group}/{r.resource} {verb}" for r in (*EVERY_RULE, *MODEL_CACHE_RULES) for verb in r.verbs}
        assert used(controlled_api_server, account) - granted == set()
        admin.delete(service)
        for api, kind, name in (
            ("batch/v1", "Job", next(iter(jobs()), "")),
            ("v1", "PersistentVolumeClaim", "demo-models"),
        ):
            admin.wait(
                f"no {kind}", lambda api=api, kind=kind, name=name: not _present(admin, api, kind, name, namespace)
            )


def _present(admin: Kube, api: str, kind: str, name: str, namespace: str) -> bool:
    """Returns whether an object exists that is not being deleted. No kubelet frees a claim in use."""
    live = admin.find(api, kind, name, namespace) if name else None
    return live is not None and "deletionTimestamp" not in live["metadata"]
