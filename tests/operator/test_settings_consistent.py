"""Tests that settings that contradict each other are reported with both fields and the fix, without effect on Ready."""

from __future__ import annotations

from typing import Any

import pytest

from tests.operator.samples import edit, make, observe, resource, running
from unmask_operator.objects import Obj
from unmask_operator.status import status
from unmask_operator.status.conditions.basic import NEEDED
from unmask_operator.status.conditions.settings_consistent import TYPE
from unmask_operator.status.transitions import transitions


def condition(**spec: Any) -> Obj:
    observed = observe(resource(**spec))
    found: Obj = next((c for c in status(observed, make(observed))["conditions"] if c["type"] == TYPE), {})
    return found


def main(**members: Any) -> Obj:
    return {"podTemplate": {"spec": {"containers": [{"name": "main", **members}]}}}


def limits(**resources: Any) -> Obj:
    return main(resources={"limits": {name.replace("__", "/"): value for name, value in resources.items()}})


def pod(**members: Any) -> Obj:
    return {"podTemplate": {"spec": members}}


IP = {"ipBlock": {"cidr": "0.0.0.0/0"}}
TEAM = {"podSelector": {"matchLabels": {"app": "web"}}}
SCALED = {"minReplicas": 2, "maxReplicas": 4}
GPU = {"gpu": {}, "parallelism": {"tensor": 2}}
CONTRADICTIONS: list[tuple[str, Obj, tuple[str, ...]]] = [
    *(
        ("NetworkPolicyBlocksClients", {"service": {"type": kind}, "networkPolicy": policy}, ("ipBlock", kind))
        for kind in ("LoadBalancer", "NodePort")
        for policy in ({}, {"from": [TEAM]}, {"from": [], "metricsFrom": [IP]})
    ),
    (
        "NetworkPolicyBlocksMetrics",
        {"networkPolicy": {"from": [TEAM]}, "monitoring": {"podMonitor": {}}},
        ("spec.networkPolicy.metricsFrom", "spec.monitoring.podMonitor"),
    ),
    *(
        ("DisruptionBudgetBlocksDrains", {"podDisruptionBudget": budget, "replicas": 2}, ("spec.podDisruptionBudget",))
        for budget in (
            {"maxUnavailable": 0},
            {"maxUnavailable": "0%"},
            {"minAvailable": 2},
            {"minAvailable": 3},
            {"minAvailable": "100%"},
            {"minAvailable": "51%"},
        )
    ),
    ("DisruptionBudgetBlocksDrains", {"podDisruptionBudget": {"minAvailable": "1%"}}, ("spec.replicas is 1",)),
    (
        "DisruptionBudgetBlocksDrains",
        {"podDisruptionBudget": {"minAvailable": 2}, "autoscaling": SCALED, "replicas": 4},
        ("spec.autoscaling.minReplicas is 2",),
    ),
    ("GPUsUnused", {**GPU, **limits(**{"nvidia.com__gpu": 4})}, ("uses 2 (parallelism.tensor",)),
    ("GPUsUnused", {**GPU, **limits(**{"nvidia.com__gpu": "3"})}, ("spec.podTemplate", "3 nvidia.com/gpu")),
    ("GPUsUnused", {**GPU, **limits(**{"nvidia.com__mig-1g.5gb": 1})}, ("1 nvidia.com/mig-1g.5gb",)),
    ("GPUsUnused", {**GPU, **limits(**{"amd.com__gpu": 1})}, ("1 amd.com/gpu, 2 nvidia.com/gpu",)),
    ("GPUsUnused", {"gpu": {"resourceName": "x.dev/tpu"}, **limits(**{"x.dev__tpu": 2})}, ("2 x.dev/tpu",)),
    ("GPUsUnused", limits(**{"nvidia.com__gpu": 1}), ("without spec.gpu",)),
    ("GPUsMissing", {**GPU, **limits(**{"nvidia.com__gpu": 1})}, ("1 nvidia.com/gpu per pod", "uses 2")),
    (
        "SharedMemoryExceedsMemory",
        {"sharedMemorySize": "4Gi", "resources": {"limits": {"memory": "4096Mi"}}},
        ("spec.sharedMemorySize is 4Gi", "4096Mi"),
    ),
    (
        "SharedMemoryExceedsMemory",
        {**GPU, "resources": {"limits": {"memory": "6Gi"}}},
        ("spec.sharedMemorySize is 8Gi", "6Gi"),
    ),
    (
        "CacheExceedsStorage",
        {"modelCache": {"emptyDir": {"sizeLimit": "50Gi"}}, "resources": {"limits": {"ephemeral-storage": "20Gi"}}},
        ("spec.modelCache.emptyDir.sizeLimit is 50Gi", "20Gi"),
    ),
    ("GracePeriodTooShort", pod(terminationGracePeriodSeconds=30), ("is 30", "70 s")),
    (
        "GracePeriodTooShort",
        {"drainTimeoutSeconds": 600, **pod(terminationGracePeriodSeconds=609)},
        ("drainTimeoutSeconds",),
    ),
    *(
        (
            "ProbeTimeoutExceedsPeriod",
            {name: {"periodSeconds": 2, "timeoutSeconds": 3, "failureThreshold": 99}},
            (name,),
        )
        for name in ("startupProbe", "livenessProbe")
    ),
    ("ProbeTimeoutExceedsPeriod", {"readinessProbe": {"periodSeconds": 2, "timeoutSeconds": 3}}, ("readinessProbe",)),
    ("LivenessWithoutStartupProbe", main(startupProbe=None), ("startupProbe", "remove livenessProbe too")),
    ("LivenessBeforeReadiness", {"livenessProbe": {"periodSeconds": 5, "failureThreshold": 3}}, ("15 s",)),
    ("LivenessBeforeReadiness", {"readinessProbe": {"failureThreshold": 100}}, ("500 s",)),
    (
        "TargetOutOfReach",
        {"engine": {"maxNumReqs": 8}, "autoscaling": {"maxReplicas": 3, "targets": {"runningRequestsPerReplica": 8}}},
        ("at most 8", "engine.maxNumReqs"),
    ),
    (
        "TargetOutOfReach",
        {"autoscaling": {"maxReplicas": 3, "targets": {"kvCacheUtilizationPercent": 100}}},
        ("kvCacheUtilizationPercent",),
    ),
    ("HostPortBlocksRollouts", main(ports=[{"containerPort": 9000, "hostPort": 9000}]), ("maxSurge 0",)),
    ("HostPortBlocksRollouts", pod(hostNetwork=True), ("hostNetwork",)),
]
CONSISTENT: list[Obj] = [
    {},
    {"gpu": {}},
    {"service": {"type": "LoadBalancer"}},
    {"networkPolicy": {}},
    {"service": {"type": "LoadBalancer"}, "networkPolicy": {"from": [TEAM, IP]}},
    {"networkPolicy": {}, "monitoring": {"podMonitor": {}}},
    {"networkPolicy": {"from": [{"namespaceSelector": {}}]}, "monitoring": {"podMonitor": {}}},
    {"networkPolicy": {"from": [TEAM], "metricsFrom": [TEAM]}, "monitoring": {"podMonitor": {}}},
    {"podDisruptionBudget": {"minAvailable": 1}, "replicas": 2},
    {"podDisruptionBudget": {"minAvailable": "50%"}, "replicas": 2},
    {"podDisruptionBudget": {"maxUnavailable": "1%"}},
    {"podDisruptionBudget": {"minAvailable": 1}, "replicas": 0},
    {"podDisruptionBudget": {"minAvailable": 1}, "suspend": True},
    {"podDisruptionBudget": {"minAvailable": 1}, "autoscaling": SCALED},
    {**GPU, **limits(**{"nvidia.com__gpu": 2})},
    {**GPU, **limits(**{"nvidia.com__gpu": None, "nvidia.com__mig-1g.5gb": 2})},
    {**GPU, **limits(**{"nvidia.com__gpumem": 4000, "nvidia.com__gpucores": 50})},
    {"gpu": {}, **main(resources={"claims": [{"name": "gpu"}], "limits": {"nvidia.com/gpu": None}})},
    limits(**{"example.com__fpga": 1}),
    {"resources": {"limits": {"memory": "1Gi"}}},
    {"sharedMemorySize": "2Gi", "resources": {"limits": {"memory": "3Gi"}}},
    {"modelCache": {"emptyDir": {"sizeLimit": "20Gi"}}, "resources": {"limits": {"ephemeral-storage": "20Gi"}}},
    {"drainTimeoutSeconds": 600},
    pod(terminationGracePeriodSeconds=70),
    main(startupProbe=None, livenessProbe=None),
    {"autoscaling": {"maxReplicas": 3, "targets": {"runningRequestsPerReplica": 8}}},
    {
        "engine": {"maxNumReqs": 8},
        "gpu": {},
        "parallelism": {"data": 2},
        "autoscaling": {"maxReplicas": 3, "targets": {"runningRequestsPerReplica": 8}},
    },
    {
        "engine": {"maxNumReqs": 8},
        "autoscaling": {"maxReplicas": 3, "targets": {"runningRequestsPerReplica": 8, "queuedRequestsPerReplica": 2}},
    },
    {**pod(hostNetwork=True), "rolloutStrategy": {"maxSurge": 0, "maxUnavailable": 1}},
]


@pytest.mark.parametrize(("reason", "spec", "texts"), CONTRADICTIONS, ids=lambda value: str(value)[:80])
def test_a_contradiction_is_a_warning_with_both_fields_and_the_fix(reason, spec, texts):
    found = condition(**spec)
    assert (found["status"], found["reason"]) == ("False", reason)
    for word in texts:
        assert word in found["message"]
    assert "spec." in found["message"]
    assert not found["message"].endswith(".")


@pytest.mark.parametrize("spec", CONSISTENT, ids=lambda value: str(value)[:80])
def test_settings_that_agree_have_no_such_condition(spec):
    assert condition(**spec) == {}


def test_several_contradictions_are_all_named():
    found = condition(podDisruptionBudget={"maxUnavailable": 0}, **pod(terminationGracePeriodSeconds=1))
    assert found["reason"] == "DisruptionBudgetBlocksDrains"
    assert "maxUnavailable is 0" in found["message"]
    assert "terminationGracePeriodSeconds is 1" in found["message"]


def test_an_invalid_spec_has_no_such_condition():
    assert condition(engine={"blockSize": 0}, podDisruptionBudget={"maxUnavailable": 0}) == {}


def test_the_condition_is_no_part_of_ready():
    assert TYPE not in NEEDED


def test_a_contradiction_emits_one_event_and_its_end_removes_the_condition():
    observed = running()
    old = status(observed, make(observed))
    wrong = edit(observed, podDisruptionBudget={"maxUnavailable": 0})
    first = status(wrong, make(wrong))
    (event,) = [e for e in transitions(old, first) if e.reason == "DisruptionBudgetBlocksDrains"]
    assert event.type == "Warning"
    wrong.resource["status"] = first
    assert [e for e in transitions(first, status(wrong, make(wrong))) if "Budget" in e.reason] == []
    right = edit(wrong, podDisruptionBudget={"maxUnavailable": 1})
    assert TYPE not in {c["type"] for c in status(right, make(right))["conditions"]}
