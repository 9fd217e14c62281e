"""Tests of provider KEDA: the ScaledObject, changes of the provider, and ScalingReady."""

from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.operator.pod_states import check, judge
from tests.operator.samples import SETTINGS, apply, child, edit, kinds, make, observe, resource
from unmask_operator.objects import Obj, Ref
from unmask_operator.plan.observed import Observed
from unmask_operator.plan.plan import Plan, plan

ON = replace(SETTINGS, keda=True)
API = "keda.sh/v1alpha1/ScaledObject"
KEDA: Obj = {"provider": "KEDA", "maxReplicas": 4}
HPA = {"provider": "HPA", "maxReplicas": 4}
CRON = {"type": "cron", "metadata": {"start": "0 8 * * *"}}
SCALED_OBJECT = Ref("keda.sh/v1alpha1", "ScaledObject", "demo-engine")
DOWN = {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 30}]}


def seen(scaling: Obj, **known: Any) -> Observed:
    spec = {key: known.pop(key) for key in ("suspend", "replicas") if key in known}
    return observe(resource(autoscaling=scaling, **spec), **{"apis": frozenset({API}), **known})


def planned(observed: Observed) -> Plan:
    return plan(observed, ON)


def rendered(**scaling: Any) -> Any:
    return child(planned(seen({**KEDA, **scaling})), "ScaledObject")["spec"]


def gauges(**scaling: Any) -> dict[str, str]:
    triggers = rendered(**scaling)["triggers"]
    return {t["metadata"].get("valueLocation", t["type"]): t["metadata"].get("targetValue", "") for t in triggers}


WAITING, RUNNING, CACHE = "unmask_requests_waiting", "unmask_requests_running", "unmask_kv_usage_ratio"
TARGETS = {"runningRequestsPerReplica": 16, "kvCacheUtilizationPercent": 85}


@pytest.mark.parametrize(
    ("scaling", "triggers"),
    [
        ({}, {WAITING: "2"}),
        ({"targets": TARGETS}, {RUNNING: "16", CACHE: "0.85"}),
        ({"keda": {"triggers": [CRON]}}, {"cron": ""}),
        ({"keda": {"triggers": [CRON]}, "targets": TARGETS}, {RUNNING: "16", CACHE: "0.85", "cron": ""}),
        # A running request keeps the last replica, although nothing waits.
        ({"keda": {"triggers": [CRON]}, "minReplicas": 0}, {RUNNING: "1000000", "cron": ""}),
        ({"keda": {"triggers": [CRON]}, "minReplicas": 0, "targets": TARGETS},
         {RUNNING: "16", CACHE: "0.85", "cron": ""}),
    ],
)  # fmt: skip
def test_the_triggers(scaling: Obj, triggers: dict[str, str]) -> None:
    assert gauges(**scaling) == triggers


def test_the_scaled_object() -> None:
    spec = rendered(minReplicas=2, pollingIntervalSeconds=7, keda={"fallbackReplicas": 3}, behavior={"scaleDown": DOWN})
    assert spec["scaleTargetRef"] == {
        "apiVersion": "serving.unmask.dev/v1alpha1", "kind": "DiffusionLMService", "name": "demo",
    }  # fmt: skip
    assert (spec["minReplicaCount"], spec["maxReplicaCount"], spec["pollingInterval"]) == (2, 4, 7)
    assert spec["fallback"] == {"failureThreshold": 3, "replicas": 3}
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior == {"scaleDown": {**DOWN, "stabilizationWindowSeconds": 300}}
    (trigger,) = spec["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("metrics-api", "AverageValue")
    url = urlsplit(trigger["metadata"]["url"])
    assert url.netloc.split(".")[:2] == ["demo", "default"], "KEDA takes the Service and its namespace from there"
    assert (url.scheme, url.port, url.path) == ("http", 8000, "/metrics")
    assert trigger["metadata"]["aggregationType"] == "sum"  # an average would be divided by the replicas twice
    assert "ScaledObject" not in kinds(planned(seen(KEDA, suspend=True)))


@pytest.mark.parametrize(("load", "window"), [(0.0, 300), (10.0, 300), (200.0, 420), (4000.0, 3600)])
def test_a_pod_that_loads_for_long_is_kept_for_long(load: float, window: int) -> None:
    """The window stays when no pod is Ready."""
    observed = seen(KEDA, longest_load=load)
    for state in (observed, replace(apply(observed, planned(observed)), longest_load=0.0)):
        spec = child(planned(state), "ScaledObject")["spec"]
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        assert (spec["cooldownPeriod"], behavior["scaleDown"]) == (window, {"stabilizationWindowSeconds": window})
    custom = {"scaleDown": {"stabilizationWindowSeconds": 60}}
    assert rendered(behavior=custom)["cooldownPeriod"] == 60


def test_a_change_of_the_provider_waits_until_the_previous_scaler_is_gone() -> None:
    """KEDA's webhook refuses a ScaledObject beside a HorizontalPodAutoscaler, also in a dry run."""
    observed = seen(HPA)
    observed = edit(apply(observed, planned(observed)), autoscaling=KEDA)
    made = planned(observed)
    assert "ScaledObject" not in kinds(made)
    assert "HorizontalPodAutoscaler" in [ref.kind for ref in made.delete]
    observed = apply(observed, made)
    observed = apply(observed, planned(observed))
    assert SCALED_OBJECT in observed.children

    observed = edit(observed, autoscaling=HPA)
    ref = Ref("autoscaling/v2", "HorizontalPodAutoscaler", "keda-hpa-demo-engine")
    owner = [{"kind": "ScaledObject", "uid": "keda", "controller": True}]
    theirs = {"apiVersion": ref.api_version, "kind": ref.kind, "metadata": {"name": ref.name, "ownerReferences": owner}}
    for left in ({**observed.children, ref: theirs}, {ref: theirs}):
        made = planned(replace(observed, children=left))
        assert "HorizontalPodAutoscaler" not in kinds(made)
        assert ref not in made.delete
    assert SCALED_OBJECT in planned(observed).delete
    left = {name: live for name, live in observed.children.items() if name != SCALED_OBJECT}
    assert "HorizontalPodAutoscaler" in kinds(planned(replace(observed, children=left)))


def test_without_keda_or_its_rights_the_service_runs_and_the_cause_is_named() -> None:
    for observed, settings, line in (
        (seen(KEDA, apis=frozenset()), ON, "ScalingReady False MissingCRD scaledobjects.keda.sh ... install KEDA"),
        (seen(KEDA), SETTINGS, "ScalingReady False NotEnabled keda.enabled"),
    ):
        made = plan(observed, settings)
        assert "ScaledObject" not in kinds(made)
        assert "Deployment" in kinds(made)
        check(judge(observed, made), line, "Accepted True")


def test_an_unread_section_keeps_the_scaled_object() -> None:
    observed = seen(KEDA)
    made = make(edit(apply(observed, planned(observed)), autoscaling={**KEDA, "provider": "Later"}), ON)
    assert "autoscaling" in made.unread
    assert SCALED_OBJECT not in made.delete


def state(*conditions: Obj, replicas: int = 2) -> Observed:
    """Returns a service at 2 or 0 replicas whose ScaledObject has these conditions."""
    scaling = {**KEDA, "minReplicas": 0, "keda": {"triggers": [CRON]}}
    observed = seen(scaling, replicas=replicas)
    observed = apply(observed, planned(observed))
    observed.children[SCALED_OBJECT]["status"] = {"conditions": list(conditions)}
    observed.children[Ref("apps/v1", "Deployment", "demo")]["status"] = {}
    return observed


READY = {"type": "Ready", "status": "True", "reason": "ScaledObjectReady"}
ERROR = {**READY, "status": "False", "reason": "TriggerError", "message": "no endpoints"}
CHECK = {**ERROR, "reason": "ScaledObjectCheckFailed", "message": "no such target"}
PAUSED = {"type": "Paused", "status": "True", "message": "ScaledObject is paused"}
NO_HPA = {"type": "HPAActive", "status": "False", "reason": "HPAMetricsUnavailable", "message": "no adapter"}


@pytest.mark.parametrize(
    ("observed", "lines"),
    [
        (state(), ["ScalingReady Unknown Waiting"]),
        (state({**READY, "status": "Unknown"}), ["ScalingReady Unknown Waiting its operator runs"]),
        (state(READY), ["ScalingReady True Active"]),
        (state(ERROR), ["ScalingReady False TriggerError no endpoints"]),
        (state(READY, NO_HPA), ["ScalingReady False HPAMetricsUnavailable no adapter"]),
        (state({"type": "Ready", "status": "False"}), ["ScalingReady False NotReady NotReady"]),
        (state(READY, PAUSED), ["ScalingReady False ScaledObjectPaused autoscaling.keda.sh/paused"]),
        # At 0 replicas the triggers have no pod to read, and the service is healthy.
        (state(ERROR, replicas=0), ["ScalingReady True Active", "Ready,Available True Asleep", "Stalled absent"]),
        (state(CHECK, replicas=0), ["ScalingReady False ScaledObjectCheckFailed no such target"]),
    ],
)
def test_scaling_ready_has_the_words_of_keda(observed: Observed, lines: list[str]) -> None:
    check(judge(observed, planned(observed)), *lines)
