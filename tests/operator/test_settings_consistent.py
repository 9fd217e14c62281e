"""Tests that settings that contradict each other are reported with both fields and the fix, without effect on Ready."""

from typing import Any

import pytest

from tests.operator.pod_states import judge
from tests.operator.samples import edit, main, make, observe, patch, resource, running
from unmask_operator.objects import Obj
from unmask_operator.status import status
from unmask_operator.status.conditions.basic import NEEDED
from unmask_operator.status.conditions.settings_consistent import TYPE
from unmask_operator.status.transitions import transitions


def condition(**spec: Any) -> Obj:
    return judge(observe(resource(**spec))).get(TYPE, {})


def limits(**resources: Any) -> Obj:
    return main(resources={"limits": {name.replace("__", "/"): value for name, value in resources.items()}})


IP = {"ipBlock": {"cidr": "0.0.0.0/0"}}
TEAM = {"podSelector": {"matchLabels": {"app": "web"}}}
ALL_OF_A_LABEL = {"namespaceSelector": {"matchLabels": {"a": "b"}}}
SCALED = {"minReplicas": 2, "maxReplicas": 4}
GPU = {"gpu": {}, "parallelism": {"tensor": 2}}
GROUP = {"gpu": {}, "parallelism": {"tensor": 2, "nodes": 2}}
MONITOR = {"monitoring": {"podMonitor": {}}}


def budget(replicas: int = 2, **members: Any) -> Obj:
    return {"podDisruptionBudget": members, "replicas": replicas}


def scaled(*, requests: int | None = 8, **targets: int) -> Obj:
    engine = {"maxNumReqs": requests} if requests else {}
    return {"engine": engine, "autoscaling": {"maxReplicas": 3, "targets": targets}}


def cached(size: str) -> Obj:
    return {"modelCache": {"emptyDir": {"sizeLimit": size}}, "resources": {"limits": {"ephemeral-storage": "20Gi"}}}


def memory(limit: str, **spec: Any) -> Obj:
    return {"resources": {"limits": {"memory": limit}}, **spec}


def served(kind: str, *peers: Obj) -> Obj:
    return {"service": {"type": kind}, "networkPolicy": {"from": [*peers], "metricsFrom": [IP]}}


SLEEP, COMMAND = {"sleep": {"seconds": 30}}, {"exec": {"command": ["sleep", "30"]}}


def stopped(hook: Obj | None, **spec: Any) -> Obj:
    entry = {"name": "main", "lifecycle": {"preStop": hook}}
    return patch(containers=[entry], **spec)


# Specs by reason, each with a part of the message.
CONTRADICTIONS: dict[str, list[tuple[Obj, str]]] = {
    "NetworkPolicyBlocksClients": [
        (served("LoadBalancer"), "ipBlock"),
        (served("NodePort", TEAM), "NodePort"),
        ({"service": {"type": "NodePort"}, "networkPolicy": {}}, "ipBlock"),
    ],
    "NetworkPolicyBlocksMetrics": [
        ({"networkPolicy": {"from": [TEAM]}, **MONITOR}, "spec.networkPolicy.metricsFrom"),
        ({"networkPolicy": {"from": [{**TEAM, "namespaceSelector": {}}]}, **MONITOR}, "spec.monitoring.podMonitor"),
        ({"networkPolicy": {"from": [ALL_OF_A_LABEL]}, **MONITOR}, "spec.monitoring.podMonitor"),
    ],
    "DisruptionBudgetBlocksDrains": [
        (budget(maxUnavailable=0), "spec.podDisruptionBudget"),
        (budget(maxUnavailable="0%"), "maxUnavailable is 0%"),
        (budget(minAvailable=2), "minAvailable is 2"),
        (budget(minAvailable="51%"), "minAvailable is 51%"),
        (budget(1, minAvailable="1%"), "spec.replicas is 1"),
        ({**budget(4, minAvailable=2), "autoscaling": SCALED}, "spec.autoscaling.minReplicas is 2"),
    ],
    "GPUsUnused": [({**GPU, **limits(**{"nvidia.com__gpu": 4})}, "uses 2 (parallelism.tensor"),
                   ({**GPU, **limits(**{"nvidia.com__mig-1g.5gb": 1})}, "1 nvidia.com/mig-1g.5gb"),
                   ({**GPU, **limits(**{"amd.com__gpu": 1})}, "1 amd.com/gpu, 2 nvidia.com/gpu"),
                   ({"gpu": {"resourceName": "x.dev/tpu"}, **limits(**{"x.dev__tpu": 2})}, "2 x.dev/tpu"),
                   (limits(**{"nvidia.com__gpu": 1}), "without spec.gpu")],
    "GPUsMissing": [({**GPU, **limits(**{"nvidia.com__gpu": 1})}, "1 nvidia.com/gpu per pod")],
    "SharedMemoryExceedsMemory": [
        (memory("4096Mi", sharedMemorySize="4Gi"), "spec.sharedMemorySize is 4Gi"),
        (memory("6Gi", **GPU), "spec.sharedMemorySize is 8Gi"),
        ({**GPU, **patch(resources={"limits": {"memory": "6Gi"}})}, "its pod is 6Gi"),
        ({**memory("9Gi", **GPU), **patch(resources={"limits": {"memory": "6Gi"}})}, "its pod is 6Gi"),
    ],
    "CacheExceedsStorage": [(cached("50Gi"), "spec.modelCache.emptyDir.sizeLimit is 50Gi")],
    "GracePeriodTooShort": [(patch(terminationGracePeriodSeconds=69), "70 s"),
                            ({"drainTimeoutSeconds": 600, **patch(terminationGracePeriodSeconds=609)},
                             "drainTimeoutSeconds"),
                            (patch(terminationGracePeriodSeconds=None), "is 30"),
                            (stopped(SLEEP, terminationGracePeriodSeconds=99), "100 s (preStop + ")],
    "PreStopNotCounted": [(stopped(COMMAND), "to 80 and"), (stopped({"httpGet": {"port": 1}}), "drainDelaySeconds"),
                          (stopped(COMMAND, terminationGracePeriodSeconds=80), "is 80")],
    "ProbeTimeoutExceedsPeriod": [
        ({name: {"periodSeconds": 2, "timeoutSeconds": 3, "failureThreshold": 99}}, name)
        for name in ("startupProbe", "livenessProbe")
    ]
    + [({"readinessProbe": {"periodSeconds": 2, "timeoutSeconds": 3}}, "readinessProbe")],
    "LivenessWithoutStartupProbe": [(main(startupProbe=None), "remove livenessProbe too")],
    "LivenessBeforeReadiness": [({"livenessProbe": {"periodSeconds": 5, "failureThreshold": 3}}, "15 s"),
                                ({"readinessProbe": {"failureThreshold": 100}}, "500 s")],
    "EachPodDownloads": [({**GROUP, "model": {"uri": "hf://org/name", "revision": "v1"}}, "each of the 2 pods")],
    "TargetOutOfReach": [(scaled(runningRequestsPerReplica=8), "at most 8"),
                         (scaled(kvCacheUtilizationPercent=100), "kvCacheUtilizationPercent")],
    "HostPortBlocksRollouts": [(main(ports=[{"containerPort": 9000, "hostPort": 9000}]), "maxSurge 0"),
                               (patch(hostNetwork=True), "hostNetwork")],
}  # fmt: skip
CONSISTENT: list[Obj] = [
    {}, {"service": {"type": "LoadBalancer"}}, served("LoadBalancer", TEAM, IP), {"networkPolicy": {}, **MONITOR},
    {"networkPolicy": {"from": [{"namespaceSelector": {}}]}, **MONITOR},
    {"networkPolicy": {"from": [TEAM], "metricsFrom": [TEAM]}, **MONITOR}, budget(minAvailable=1),
    budget(1, maxUnavailable="1%"), budget(0, minAvailable=1), {**budget(1, minAvailable=1), "suspend": True},
    {**budget(1, minAvailable=1), "autoscaling": SCALED}, {**GPU, **limits(**{"nvidia.com__gpu": 2})},
    {**GPU, **limits(**{"nvidia.com__gpu": None, "nvidia.com__mig-1g.5gb": 2})},
    {**GPU, **limits(**{"nvidia.com__gpumem": 4000, "nvidia.com__gpucores": 50})},
    {"gpu": {}, **main(resources={"claims": [{"name": "gpu"}], "limits": {"nvidia.com/gpu": None}})},
    memory("3Gi", sharedMemorySize="2Gi"), cached("20Gi"), {"drainTimeoutSeconds": 600},
    patch(terminationGracePeriodSeconds=70), stopped(SLEEP), stopped(None), stopped({}),
    stopped(SLEEP, terminationGracePeriodSeconds=100), stopped(COMMAND, terminationGracePeriodSeconds=81),
    main(startupProbe=None, livenessProbe=None),
    scaled(requests=None, runningRequestsPerReplica=8),
    {**scaled(runningRequestsPerReplica=8), "gpu": {}, "parallelism": {"data": 2}},
    scaled(runningRequestsPerReplica=8, queuedRequestsPerReplica=2),
    {**patch(hostNetwork=True), "rolloutStrategy": {"maxSurge": 0, "maxUnavailable": 1}},
    {**GROUP, **budget(1, minAvailable=1)}, {**GROUP, **patch(hostNetwork=True)},
]  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "spec", "part"),
    [(reason, *case) for reason, cases in CONTRADICTIONS.items() for case in cases],
    ids=lambda value: str(value)[:80],
)
def test_a_contradiction_is_a_warning_that_names_the_fields(reason: str, spec: Obj, part: str) -> None:
    found = condition(**spec)
    assert (found["status"], found["reason"]) == ("False", reason)
    assert part in found["message"]
    assert "spec." in found["message"]


@pytest.mark.parametrize("spec", CONSISTENT, ids=lambda value: str(value)[:80])
def test_settings_that_agree_have_no_such_condition(spec: Obj) -> None:
    assert condition(**spec) == {}


def test_several_contradictions_are_all_named_and_those_of_an_invalid_spec_are_not():
    wrong = {"podDisruptionBudget": {"maxUnavailable": 0}, **patch(terminationGracePeriodSeconds=1)}
    found = condition(**wrong)
    assert found["reason"] == "DisruptionBudgetBlocksDrains"
    assert "maxUnavailable is 0" in found["message"]
    assert "terminationGracePeriodSeconds is 1" in found["message"]
    assert condition(engine={"blockSize": 0}, **wrong) == {}
    assert TYPE not in NEEDED, "the condition is no part of Ready"


def test_a_contradiction_emits_one_event_and_its_end_removes_the_condition():
    observed = running()
    old = status(observed, make(observed))
    wrong = edit(observed, podDisruptionBudget={"maxUnavailable": 0})
    first = status(wrong, make(wrong))
    (event,) = [e for e in transitions(old, first) if e.reason == "DisruptionBudgetBlocksDrains"]
    assert event.type == "Warning"
    right = edit(wrong, podDisruptionBudget={"maxUnavailable": 1})
    assert TYPE not in judge(right)
