"""Tests of conditions about running pods that are not Ready, terminated containers, and failed pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.operator.pod_states import RUNNING, container, judge, judge_pod, observe_pod, started_pod
from unmask_operator.objects import Obj
from unmask_operator.plan.observed import PodEvent

BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}}
LIMIT = {"resources": {"limits": {"memory": "1Gi"}}}


def available(pod_status: Obj, **known: Any) -> tuple[str, str]:
    found = judge_pod(pod_status, **known)
    assert found["Available"]["status"] == "False"
    return found["Available"]["reason"], found["Available"]["message"]


def terminated(name: str = "main", reason: str = "OOMKilled", code: int = 137, message: str = "") -> Obj:
    end = {"reason": reason, "exitCode": code, **({"message": message} if message else {})}
    return container(name, state=BACK_OFF, lastState={"terminated": end})


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({}, "NodeNotReady"),
        ({"reason": "NodeLost", "message": "Node n1 which was running pod demo-p1 is unresponsive"}, "NodeLost"),
        (
            {"ready_reason": "NodeStatusUnknown", "ready_message": "Kubelet stopped posting node status."},
            "NodeStatusUnknown",
        ),
        ({"phase": "Unknown"}, "NodeLost"),
    ],
)
def test_a_pod_of_a_lost_node_is_not_blamed_on_its_probe(members: Obj, reason: str) -> None:
    found, message = available(started_pod(**members))
    assert found == reason
    assert message.startswith("node n1 of pod demo-p1 does not answer")
    assert "kubectl describe node n1" in message
    assert "/ready" not in message


def test_a_lost_node_is_named_while_the_model_loads() -> None:
    loading = {"phase": "Running", "reason": "NodeLost", "containerStatuses": [container(state=RUNNING)]}
    found = judge_pod(loading)["Ready"]
    assert found["reason"] == "NodeLost"
    assert "node n1" in found["message"]


def test_a_pod_that_cannot_be_deleted_from_a_lost_node_is_named() -> None:
    lost = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    observed = observe_pod(started_pod(conditions=[lost]))
    observed.pods[0]["metadata"]["deletionTimestamp"] = "2026-01-02T03:00:05Z"
    found = judge(observed)["Scheduled"]
    assert found["reason"] == "Pending"
    assert found["message"] == ("no pod has a node yet; pod demo-p1 is being deleted, and its node n1 does not answer")


@pytest.mark.parametrize(
    ("known", "says"),
    [
        ([], "condition example.com/lb is missing, its controller has not set it"),
        (
            [{"type": "example.com/lb", "status": "False", "reason": "Unhealthy", "message": "0 of 1 targets"}],
            "condition example.com/lb is False (Unhealthy: 0 of 1 targets)",
        ),
        ([{"type": "example.com/lb", "status": "Unknown"}], "condition example.com/lb is Unknown"),
    ],
)
def test_a_readiness_condition_that_is_not_true_is_named(known: list[Obj], says: str) -> None:
    asks = {"readinessGates": [{"conditionType": "example.com/lb"}, {"conditionType": "example.com/met"}]}
    met = {"type": "example.com/met", "status": "True"}
    reason, message = available(
        started_pod(ready_reason="ReadinessGatesNotReady", conditions=[met, *known]), pod_spec=asks
    )
    assert reason == "ReadinessGatesNotReady"
    assert says in message
    assert "example.com/met" not in message
    assert "/ready" not in message


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_sidecar_that_is_not_ready_is_named_and_the_engine_is_not(kind: str) -> None:
    proxy = container("istio-proxy", started=True, state=RUNNING)
    if kind == "containers":
        reason, message = available(started_pod(proxy, ready_reason="ContainersNotReady"))
    else:
        spec = {"initContainers": [{"name": "istio-proxy", "restartPolicy": "Always"}]}
        pod_status = started_pod(initContainerStatuses=[proxy], ready_reason="ContainersNotReady")
        reason, message = available(pod_status, pod_spec=spec)
    assert reason == "ContainersNotReady"
    assert message.startswith("container istio-proxy of pod demo-p1 is not Ready")
    assert "/ready" not in message
    assert "main" not in message


def test_a_sidecar_that_runs_again_is_named_with_how_it_ended() -> None:
    end = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
    reason, message = available(started_pod(container("istio-proxy", started=True, state=RUNNING, lastState=end)))
    assert reason == "ContainersNotReady"
    assert "container istio-proxy was killed for using more memory than its limit" in message
    assert "containers[name=istio-proxy].resources.limits.memory" in message


def test_a_sidecar_that_only_the_message_of_the_condition_names_is_named() -> None:
    pod_status = started_pod(ready_reason="ContainersNotReady")
    pod_status["conditions"][0]["message"] = "containers with unready status: [istio-proxy log-agent]"
    reason, message = available(pod_status)
    assert reason == "ContainersNotReady"
    assert message.startswith("containers istio-proxy, log-agent of pod demo-p1 are not Ready")


def test_an_engine_whose_probe_fails_is_named_by_its_probe() -> None:
    reason, message = available(started_pod(main_ready=False, ready_reason="ContainersNotReady"))
    assert reason == "ReadinessProbeFailed"
    assert message == "pod demo-p1 has loaded its model, but its readiness probe (/ready) fails"
    proxy = container("istio-proxy", started=True, state=RUNNING)
    reason, message = available(started_pod(proxy, main_ready=False, ready_reason="ContainersNotReady"))
    assert reason == "ReadinessProbeFailed"
    assert "(/ready) fails; container istio-proxy of pod demo-p1 is not Ready" in message


def test_a_reason_of_the_ready_condition_that_is_not_known_is_quoted() -> None:
    reason, message = available(started_pod(ready_reason="Paused", ready_message="by the fleet manager"))
    assert reason == "Paused"
    assert message == "pod demo-p1 is not Ready: Paused: by the fleet manager"


def test_what_keeps_new_pods_from_being_ready_is_part_of_the_rollout() -> None:
    asks = {"readinessGates": [{"conditionType": "example.com/lb"}]}
    found = judge_pod(started_pod(ready_reason="ReadinessGatesNotReady"), pod_spec=asks)["RolloutComplete"]
    assert found["reason"] == "Progressing"
    assert found["message"].startswith(
        "1 of 1 pods are of the newest template; pod demo-p1 waits for its readiness gates"
    )
    overdue = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}
    found = judge_pod(started_pod(), deployment={"conditions": [overdue]})["RolloutComplete"]
    assert found["reason"] == "ProgressDeadlineExceeded"
    assert "node n1 of pod demo-p1 does not answer" in found["message"]


def test_an_init_container_that_runs_is_named_while_the_engine_waits() -> None:
    waits = container(state={"waiting": {"reason": "PodInitializing"}})
    pod_status = {"phase": "Pending", "containerStatuses": [waits]}
    pod_status["initContainerStatuses"] = [container("download", state=RUNNING, started=True)]
    spec = {"initContainers": [{"name": "download"}]}
    found = judge_pod(pod_status, pod_spec=spec)["ModelLoaded"]
    assert (found["reason"], "init container download" in found["message"]) == ("Pending", True)
    sidecar = {"initContainers": [{"name": "download", "restartPolicy": "Always"}]}
    assert "download" not in judge_pod(pod_status, pod_spec=sidecar)["ModelLoaded"]["message"]
    pod_status["initContainerStatuses"][0]["started"] = False
    assert "download" in judge_pod(pod_status, pod_spec=sidecar)["ModelLoaded"]["message"]


def ready_message(pod_status: Obj, **known: Any) -> tuple[str, str]:
    found = judge_pod(pod_status, **known)["Ready"]
    return found["reason"], found["message"]


def test_an_engine_over_its_limit_names_the_limit() -> None:
    over = {"phase": "Running", "containerStatuses": [terminated()]}
    limits = {"resources": {"limits": {"memory": "16Gi"}}}
    assert ready_message(over, **limits) == (
        "OOMKilled",
        "container main was killed for using more memory than its limit; raise spec.resources.limits.memory",
    )


def test_an_engine_without_a_limit_names_its_node() -> None:
    reason, message = ready_message({"phase": "Running", "containerStatuses": [terminated()]})
    assert reason == "OOMKilled"
    assert "node n1 ran out of memory" in message
    assert "set spec.resources.requests.memory" in message
    assert "limits.memory" not in message


def test_an_engine_within_a_limit_of_the_pod_names_that() -> None:
    over = {"phase": "Running", "containerStatuses": [terminated()]}
    reason, message = ready_message(over, pod_spec={"resources": {"limits": {"memory": "8Gi"}}})
    assert reason == "OOMKilled"
    assert message.endswith("raise spec.podTemplate.spec.resources.limits.memory")


def with_sidecar(observed_spec: Obj | None = None) -> Obj:
    """Returns a pod spec with the sidecar istio-proxy and the init container fetch."""
    main = template_containers()
    extra = observed_spec or {}
    return {
        "containers": [*main, {"name": "istio-proxy", **extra}],
        "initContainers": [{"name": "fetch", **extra}],
    }


def template_containers() -> list[Obj]:
    return [{"name": "main", "resources": {"limits": {"memory": "16Gi"}}}]


@pytest.mark.parametrize(
    ("name", "path"), [("istio-proxy", "containers[name=istio-proxy]"), ("fetch", "initContainers[name=fetch]")]
)
def test_another_container_out_of_memory_is_named_with_its_own_field(name: str, path: str) -> None:
    member = "initContainerStatuses" if name == "fetch" else "containerStatuses"
    for spec, field in ((LIMIT, "limits"), ({}, "requests")):
        over = started_pod(**({member: [terminated(name)]} if name == "fetch" else {}))
        if name != "fetch":
            over["containerStatuses"].append(terminated(name))
        reason, message = ready_message(over, pod_spec=with_sidecar(spec))
        assert reason == "OOMKilled"
        assert message.startswith(f"container {name} was killed ")
        assert f"spec.podTemplate.spec.{path}.resources.{field}.memory" in message
        assert " spec.resources" not in message


def test_an_init_container_that_a_webhook_added_is_named() -> None:
    end = terminated("istio-init")
    _, message = ready_message({"phase": "Pending", "initContainerStatuses": [end], "containerStatuses": [container()]})
    assert "raise spec.podTemplate.spec.initContainers[name=istio-init].resources.limits.memory" in message


def test_a_sidecar_that_a_webhook_added_is_named() -> None:
    over = started_pod(terminated("istio-proxy"))
    reason, message = ready_message(over)
    assert reason == "OOMKilled"
    assert "raise spec.podTemplate.spec.containers[name=istio-proxy].resources.limits.memory" in message


@pytest.mark.parametrize(
    ("reason", "code", "says"),
    [
        ("Error", 137, "ended with exit code 137 (SIGKILL)"),
        ("ContainerStatusUnknown", 137, "ended with exit code 137 (SIGKILL, ContainerStatusUnknown)"),
        ("Error", 139, "ended with exit code 139 (SIGSEGV)"),
        ("Error", 1, "ended with exit code 1: last line"),
        ("Completed", 0, "ended with exit code 0: last line"),
        ("StartError", 128, "could not be started (StartError): last line"),
        ("ContainerCannotRun", 127, "could not be started (ContainerCannotRun): last line"),
        ("DeadlineExceeded", 1, "ended with exit code 1 (DeadlineExceeded): last line"),
    ],
)
@pytest.mark.parametrize("name", ["main", "istio-proxy", "fetch"])
def test_a_container_that_ended_otherwise_is_named_without_advice_on_memory(
    reason: str, code: int, says: str, name: str
) -> None:
    end = terminated(name, reason, code, "first\nlast line\n")
    if name == "main":
        pod_status: Obj = {"phase": "Running", "containerStatuses": [end]}
    elif name == "fetch":
        pod_status = started_pod(initContainerStatuses=[end])
    else:
        pod_status = started_pod(end)
    found, message = ready_message(pod_status, pod_spec=with_sidecar())
    assert found == "CrashLoopBackOff"
    assert message.startswith(f"container {name} {says}")
    assert "memory" not in message
    assert "spec.resources" not in message


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("ErrImagePull", "rpc error: code = NotFound desc = not found"),
        ("RegistryUnavailable", "image pull failed for i because the registry is unavailable"),
        ("SignatureValidationFailed", "image pull failed for i because the signature validation failed"),
    ],
)
def test_an_image_that_cannot_be_pulled_has_one_reason_while_the_kubelet_retries(error: str, cause: str) -> None:
    back_off = f'Back-off pulling image "i": {error}: {cause}'
    for reason, message in ((error, cause), ("ImagePullBackOff", back_off)):
        waiting = container(state={"waiting": {"reason": reason, "message": message}})
        found = ready_message({"phase": "Pending", "containerStatuses": [waiting]})
        assert found == ("ImagePullBackOff", f"image i cannot be pulled: {cause}")
    waiting = container(state={"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "i"'}})
    assert ready_message({"phase": "Pending", "containerStatuses": [waiting]})[1] == "image i cannot be pulled"


def test_a_container_that_cannot_be_started_has_one_reason_while_the_kubelet_retries() -> None:
    end = terminated(reason="StartError", code=128, message="exec: not found")
    retried = {**end, "state": {"waiting": {"reason": "RunContainerError", "message": "exec: not found"}}}
    for one in (end, retried):
        assert ready_message({"phase": "Running", "containerStatuses": [one]}) == (
            "CrashLoopBackOff",
            "container main could not be started (StartError): exec: not found",
        )


def failed(message: str, reason: str = "Evicted") -> tuple[str, str]:
    found = judge_pod({"phase": "Failed", "reason": reason, "message": message}, pod_spec=with_sidecar())["ModelLoaded"]
    return found["reason"], found["message"]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. Container main was "
            "using 12Gi, request is 0, has larger consumption of memory. ",
            "set spec.resources.requests.memory to the memory that container main needs",
        ),
        (
            "The node was low on resource: memory. Container istio-proxy was using 2Gi, request is 40Mi, has larger "
            "consumption of memory. ",
            "set spec.podTemplate.spec.containers[name=istio-proxy].resources.requests.memory to the memory that "
            "container",
        ),
        (
            "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 512Mi.",
            "request it for the pod with spec.modelCache.emptyDir.sizeLimit",
        ),
        (
            "The node was low on resource: ephemeral-storage. Container istio-proxy was using 9Gi, request is 0, has "
            "larger consumption of ephemeral-storage.",
            "set spec.podTemplate.spec.containers[name=istio-proxy].resources.requests.ephemeral-storage",
        ),
        ("The node was low on resource: pids.", "free pids on the node"),
        (
            'Usage of EmptyDir volume "model-cache" exceeds the limit "10Gi". ',
            "raise spec.modelCache.emptyDir.sizeLimit",
        ),
        ('Usage of EmptyDir volume "shm" exceeds the limit "1Gi". ', "raise spec.sharedMemorySize"),
        ('Usage of EmptyDir volume "logs" exceeds the limit "1Gi". ', "volume logs in spec.podTemplate.spec.volumes"),
        (
            'Container istio-proxy exceeded its local ephemeral storage limit "1Gi". ',
            "raise spec.podTemplate.spec.containers[name=istio-proxy].resources.limits.ephemeral-storage",
        ),
    ],
)
def test_an_eviction_names_the_resource_and_the_field(message: str, says: str) -> None:
    reason, found = failed(message)
    assert reason == "Evicted"
    assert message.strip(" .") in found
    assert says in found
    assert "limits.memory" not in found


def test_a_pod_over_its_deadline_names_the_field() -> None:
    reason, message = failed("Pod was active on the node longer than the specified deadline", "DeadlineExceeded")
    assert reason == "DeadlineExceeded"
    assert "remove spec.podTemplate.spec.activeDeadlineSeconds" in message


def test_a_pod_of_a_deleted_node_is_reported_as_such() -> None:
    gone = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
    gone["message"] = "PodGC: node no longer exists"
    found = judge_pod({"phase": "Failed", "conditions": [gone]})["ModelLoaded"]
    assert (found["reason"], found["message"]) == ("PodFailed", "pod demo-p1 failed: PodGC: node no longer exists")


def test_a_probe_of_a_sidecar_names_the_sidecars_field() -> None:
    """Checks that Events about a probe of another container are ignored. Events name the container."""
    ended = terminated("istio-proxy", "Error", 143)
    events = (
        PodEvent("Unhealthy", "Liveness probe failed: of the engine", True, "main"),
        PodEvent("Unhealthy", "Liveness probe failed: connection refused", True, "istio-proxy"),
        PodEvent("Killing", "Container istio-proxy failed liveness probe, will be restarted", False, "istio-proxy"),
        PodEvent("Killing", "Container main failed startup probe, will be restarted", False, "main"),
    )
    observed = replace(observe_pod(started_pod(ended), pod_spec=with_sidecar()), pod_events={"p1": events})
    found = judge(observed)["Ready"]
    assert found["reason"] == "LivenessProbeFailed"
    assert found["message"] == (
        "the kubelet ended container istio-proxy because of its liveness probe "
        "(spec.podTemplate.spec.containers[name=istio-proxy].livenessProbe): Liveness probe failed: connection refused"
    )
