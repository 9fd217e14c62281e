"""Tests of conditions about running pods that are not Ready, terminated containers, and failed pods."""

from dataclasses import replace
from typing import Any

import pytest

from tests.operator.pod_states import RUNNING, check, container, judge, observe_pod, started_pod
from unmask_operator.objects import Obj
from unmask_operator.plan.observed import Observed, PodEvent

BACK_OFF_PULL = 'Back-off pulling image "i"'
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}}
LIMIT = {"resources": {"limits": {"memory": "1Gi"}}}
MAIN = {"name": "main", "resources": {"limits": {"memory": "16Gi"}}}
PROXY = container("istio-proxy", started=True, state=RUNNING)
ALWAYS = {"initContainers": [{"name": "istio-proxy", "restartPolicy": "Always"}]}
READINESS = {"readinessGates": [{"conditionType": "example.com/lb"}, {"conditionType": "example.com/met"}]}
MET = {"type": "example.com/met", "status": "True"}
UNREADY = "ContainersNotReady"


def terminated(name: str = "main", reason: str = "OOMKilled", code: int = 137, message: str = "") -> Obj:
    end = {"reason": reason, "exitCode": code, **({"message": message} if message else {})}
    return container(name, state=BACK_OFF, lastState={"terminated": end})


def with_sidecar(**members: Any) -> Obj:
    """Returns a pod spec with the sidecar istio-proxy and the init container fetch, which have these members."""
    others = {"name": "istio-proxy", **members}, {"name": "fetch", **members}
    return {"containers": [MAIN, others[0]], "initContainers": [others[1]]}


def ended(end: Obj) -> Obj:
    """Returns the status of a pod with a terminated container."""
    if end["name"] == "main":
        return {"phase": "Running", "containerStatuses": [end]}
    return started_pod(initContainerStatuses=[end]) if end["name"] == "fetch" else started_pod(end)


def gated(*conditions: Obj) -> Obj:
    return started_pod(ready_reason="ReadinessGatesNotReady", conditions=[MET, *conditions])


def waiting(reason: str, message: str = "") -> Obj:
    main = container(state={"waiting": {"reason": reason, "message": message}})
    return {"phase": "Pending", "containerStatuses": [main]}


LOST = "^node n1 of pod demo-p1 does not answer ... kubectl describe node n1 ... !/ready"
NODE_LOST = {"reason": "NodeLost", "message": "Node n1 which was running pod demo-p1 is unresponsive"}
NAMES_ONLY = started_pod(ready_reason=UNREADY, ready_message="containers with unready status: [istio-proxy log-agent]")
RUNS_AGAIN = {**PROXY, "lastState": terminated()["lastState"]}
LB = {"type": "example.com/lb"}
UNHEALTHY = {**LB, "status": "False", "reason": "Unhealthy", "message": "0 of 1 targets"}
NOT_TRUE = "False ReadinessGatesNotReady !example.com/met ... !/ready ..."
NOT_PROXY = f"False {UNREADY} ^container istio-proxy of pod demo-p1 is not Ready ... !/ready ... !main"
PROBE = "False ReadinessProbeFailed pod demo-p1 has loaded its model, but its readiness probe (/ready) fails"
OVERDUE = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}
POD_LIMIT = {"resources": {"limits": {"memory": "8Gi"}}}
PATH = "spec.podTemplate.spec"
INIT = waiting("PodInitializing")
FETCH = container("download", state=RUNNING)
DOWNLOADING = {**INIT, "initContainerStatuses": [FETCH]}
DOWNLOADED = {**INIT, "initContainerStatuses": [{**FETCH, "started": True}]}
NOT_LOCATED = {
    "exitCode": 137, "reason": "ContainerStatusUnknown", "message": "the container could not be located",
}  # fmt: skip
IS_SIDECAR = {"initContainers": [{"name": "download", "restartPolicy": "Always"}]}
GONE = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "node no longer exists"}


def of(pod_status: Obj, pod_spec: Obj | None = None, **known: Any) -> Observed:
    return observe_pod(pod_status, pod_spec=pod_spec, **known)


OUT_OF_MEMORY = ended(terminated())
IMAGES = [
    ("ErrImagePull", "rpc error: code = NotFound desc = not found"),
    ("RegistryUnavailable", "image pull failed for i because the registry is unavailable"),
    ("SignatureValidationFailed", "image pull failed for i because the signature validation failed"),
]


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        # a lost node is not blamed on the probe
        (of(started_pod()), f"Available False NodeNotReady {LOST}"),
        (of(started_pod(**NODE_LOST)), f"Available False NodeLost {LOST} ... is unresponsive"),
        (of(started_pod(phase="Unknown")), f"Available False NodeLost {LOST}"),
        (of({**NODE_LOST, "containerStatuses": [container(state=RUNNING)]}), "Ready False NodeLost node n1"),
        # readiness gates
        (of(gated(), READINESS), f"Available {NOT_TRUE} example.com/lb is missing, its controller has not set it"),
        (of(gated(UNHEALTHY), READINESS), f"Available {NOT_TRUE} example.com/lb is False (Unhealthy: 0 of 1 targets)"),
        # containers that are not Ready
        (of(started_pod(PROXY, ready_reason=UNREADY)), f"Available {NOT_PROXY}"),
        (of(started_pod(initContainerStatuses=[PROXY], ready_reason=UNREADY), ALWAYS), f"Available {NOT_PROXY}"),
        (
            of(started_pod(RUNS_AGAIN)),
            f"Available False {UNREADY} container istio-proxy was killed for using more memory than its limit ... "
            "containers[name=istio-proxy].resources.limits.memory",
        ),
        (of(NAMES_ONLY), f"Available False {UNREADY} ^containers istio-proxy, log-agent of pod demo-p1 are not Ready"),
        (of(started_pod(main_ready=False, ready_reason=UNREADY)), f"Available {PROBE} ... !;"),
        (of(started_pod(PROXY, main_ready=False)), f"Available {PROBE}; container istio-proxy of pod demo-p1 is not"),
        (of(started_pod(ready_reason="Paused", ready_message="by the fleet manager")),
         "Available False Paused ^pod demo-p1 is not Ready: Paused: by the fleet manager"),
        # what keeps new pods from being Ready is part of the rollout
        (of(gated(), READINESS),
         "RolloutComplete False Progressing ^1 of 1 pods are of the newest template; pod demo-p1"),
        (of(started_pod(), deployment={"conditions": [OVERDUE]}),
         "RolloutComplete False ProgressDeadlineExceeded node n1 of pod demo-p1 does not answer"),
        # init containers
        (of(DOWNLOADING, IS_SIDECAR),
         "ModelLoaded False Pending init container download of pod demo-p1 has not started"),
        (of({"phase": "Failed", "containerStatuses": [container(state={"terminated": NOT_LOCATED})]}),
         "Ready False ContainerStatusUnknown pod demo-p1 failed: the container could not be located"),
        (of({"phase": "Failed", "reason": "NodeShutdown", "message": "the node shuts down"}),
         "Scheduled,ModelLoaded,Ready False NodeShutdown the node shuts down"),
        (of(DOWNLOADED), "ModelLoaded False Pending init container download of pod demo-p1 has not finished"),
        (of(DOWNLOADED, IS_SIDECAR), "ModelLoaded False Pending !download"),
        (of(DOWNLOADING, IS_SIDECAR), "ModelLoaded False Pending download"),
        # out of memory
        (of(OUT_OF_MEMORY, **LIMIT),
         "Ready False OOMKilled ^container main was killed ... than its limit; raise spec.resources.limits.memory"),
        (of(OUT_OF_MEMORY), "Ready False OOMKilled node n1 ran out of memory ... spec.resources.requests ... !limits"),
        (of(OUT_OF_MEMORY, POD_LIMIT), f"Ready False OOMKilled the pod used ... raise {PATH}.resources.limits.memory"),
        *(
            (
                of(ended(terminated(name)), with_sidecar(**spec)),
                f"Ready False OOMKilled ^container {name} was killed ... !spec.resources ... "
                f"{PATH}.{kind}[name={name}].resources.{field}.memory",
            )
            for name, kind in (("istio-proxy", "containers"), ("fetch", "initContainers"))
            for spec, field in ((LIMIT, "limits"), ({}, "requests"))
        ),
        # containers that a webhook added
        (of({"phase": "Pending", "initContainerStatuses": [terminated("init")], "containerStatuses": [container()]}),
         f"Ready False OOMKilled raise {PATH}.initContainers[name=init].resources.limits.memory"),
        (of(started_pod(terminated("istio-proxy"))),
         f"Ready False OOMKilled raise {PATH}.containers[name=istio-proxy].resources.limits.memory"),
        # images: the kubelet alternates between two reasons
        *((of(waiting(reason, message)), f"Ready False ImagePullBackOff ^image i cannot be pulled: {cause}")
          for error, cause in IMAGES
          for reason, message in ((error, cause), ("ImagePullBackOff", f"{BACK_OFF_PULL}: {error}: {cause}"))),
        (of(waiting("ImagePullBackOff", BACK_OFF_PULL)), "Ready False ImagePullBackOff ^image i cannot ... !:"),
        # failed pods
        (of({"phase": "Failed", "conditions": [GONE]}),
         "ModelLoaded False PodFailed pod demo-p1 failed: node no longer"),
        (of({"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active for too long"}),
         f"ModelLoaded False DeadlineExceeded remove {PATH}.activeDeadlineSeconds"),
    ],
)  # fmt: skip
def test_conditions_of_a_pod(observed: Observed, expected: str) -> None:
    check(judge(observed), "Available False", expected)


@pytest.mark.parametrize(
    ("reason", "code", "says"),
    [
        ("Error", 137, "ended with exit code 137 (SIGKILL)"),
        ("ContainerStatusUnknown", 137, "ended with exit code 137 (SIGKILL, ContainerStatusUnknown)"),
        ("Error", 139, "ended with exit code 139 (SIGSEGV)"),
        ("Error", 128, "ended with exit code 128: last line"),
        ("Completed", 0, "ended with exit code 0: last line"),
        ("StartError", 128, "could not be started (StartError): last line"),
        ("DeadlineExceeded", 1, "ended with exit code 1 (DeadlineExceeded): last line"),
    ],
)
@pytest.mark.parametrize("name", ["main", "istio-proxy", "fetch"])
def test_a_container_that_ended_is_named_without_advice_on_memory(reason: str, code: int, says: str, name: str) -> None:
    end = terminated(name, reason, code, "first\nlast line\n")
    expected = f"Ready False CrashLoopBackOff ^container {name} {says} ... !memory ... !spec.resources"
    check(judge(of(ended(end), with_sidecar())), expected)
    if reason == "StartError":  # the kubelet alternates between two reasons
        end["state"] = {"waiting": {"reason": "RunContainerError", "message": "last line"}}
        check(judge(of(ended(end), with_sidecar())), expected)


LOW = "The node was low on resource: "


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        (f"{LOW}memory. Threshold quantity: 100Mi, available: 90Mi. Container main was using 12Gi, request is 0. ",
         "set spec.resources.requests.memory to the memory that container main needs"),
        (f"{LOW}memory. Container istio-proxy was using 2Gi, request is 40Mi. ",
         f"set {PATH}.containers[name=istio-proxy].resources.requests.memory to the memory that container"),
        (f"{LOW}ephemeral-storage. Threshold quantity: 1Gi, available: 512Mi.",
         "request it for the pod with spec.modelCache.emptyDir.sizeLimit"),
        (f"{LOW}ephemeral-storage. Container istio-proxy was using 9Gi, request is 0.",
         f"set {PATH}.containers[name=istio-proxy].resources.requests.ephemeral-storage"),
        (f"{LOW}pids.", "free pids on the node"),
        ('Usage of EmptyDir volume "model-cache" exceeds the limit "10Gi". ', "raise spec.modelCache.emptyDir.sizeLim"),
        ('Usage of EmptyDir volume "shm" exceeds the limit "1Gi". ', "raise spec.sharedMemorySize"),
        ('Usage of EmptyDir volume "logs" exceeds the limit "1Gi". ', f"volume logs in {PATH}.volumes"),
        ('Container istio-proxy exceeded its local ephemeral storage limit "1Gi". ',
         f"raise {PATH}.containers[name=istio-proxy].resources.limits.ephemeral-storage"),
    ],
)  # fmt: skip
def test_an_eviction_names_the_resource_and_the_field(message: str, fix: str) -> None:
    found = judge(of({"phase": "Failed", "reason": "Evicted", "message": message}, with_sidecar()))
    check(found, f"ModelLoaded False Evicted {message.strip(' .')} ... {fix} ... !limits.memory")


def test_a_pod_that_cannot_be_deleted_from_a_lost_node_is_named() -> None:
    lost = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    observed = observe_pod(started_pod(conditions=[lost]))
    observed.pods[0]["metadata"]["deletionTimestamp"] = "2026-01-02T03:00:05Z"
    says = (
        "Scheduled False Pending no pod has a node yet; pod demo-p1 is being deleted, and its node n1 does not answer"
    )
    check(judge(observed), says)


def test_a_probe_of_a_sidecar_names_the_sidecars_field() -> None:
    """Events about a probe of another container are ignored. Events name the container."""
    events = (
        PodEvent("Unhealthy", "Liveness probe failed: of the engine", True, "main"),
        PodEvent("Unhealthy", "Liveness probe failed: connection refused", True, "istio-proxy"),
        PodEvent("Killing", "Container istio-proxy failed liveness probe, will be restarted", False, "istio-proxy"),
        PodEvent("Killing", "Container main failed startup probe, will be restarted", False, "main"),
    )
    observed = observe_pod(started_pod(terminated("istio-proxy", "Error", 143)), pod_spec=with_sidecar())
    says = "^the kubelet ended container istio-proxy because of its liveness probe"
    field = f"({PATH}.containers[name=istio-proxy].livenessProbe): Liveness probe failed: connection refused"
    expected = f"Ready False LivenessProbeFailed {says} ... {field}"
    check(judge(replace(observed, pod_events={"p1": events})), expected)
