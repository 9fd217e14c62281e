"""`spec.autoscaling`: the autoscaler of `replicas`, its bounds and its targets."""

from typing import Annotated, Literal

from pydantic import Field

from unmask_operator.api.base import Free, Section

POLLING_SECONDS = 5
KEDA_POLLING_SECONDS = 15
ACTIVATOR_PORTS = range(20_000, 30_000)  # of the activator, one per service that scales to zero
# Target -> the runtime's gauge that measures it, and the factor from the gauge's unit to the target's.
GAUGES = {
    "queuedRequestsPerReplica": ("unmask_requests_waiting", 1),
    "runningRequestsPerReplica": ("unmask_requests_running", 1),
    "kvCacheUtilizationPercent": ("unmask_kv_usage_ratio", 100),
}
# Optional gauges by internal name: maximum number of running requests, and model load time in seconds.
EXTRA_GAUGES = {"max_running": ("unmask_max_running_requests", 1), "load_seconds": ("unmask_model_load_seconds", 1)}
DEFAULT_TARGETS = {"queuedRequestsPerReplica": 2}  # if the spec sets no target

_Replicas = Annotated[int, Field(ge=1, le=1000)]
_Target = Annotated[int, Field(ge=1, le=100_000)]


class Targets(Section):
    """Target load per replica. The target that needs the most replicas decides."""

    queued_requests_per_replica: _Target | None = None
    """Waiting requests per replica. (unmask_requests_waiting)"""
    running_requests_per_replica: _Target | None = None
    """Running requests per replica. (unmask_requests_running)"""
    kv_cache_utilization_percent: Annotated[int, Field(ge=1, le=100)] | None = None
    """KV cache utilization in percent. (unmask_kv_usage_ratio)"""


class ScalingPolicy(Section):
    """Maximum change of replicas within a period."""

    type: Literal["Pods", "Percent"]
    """Unit of value."""
    value: Annotated[int, Field(ge=1, le=100_000)]
    """Maximum change, in replicas or percent of them."""
    period_seconds: Annotated[int, Field(ge=1, le=1800)]
    """Length of the period in seconds."""


class ScalingRules(Section):
    """Scaling rules of one direction, as HPAScalingRules of autoscaling/v2."""

    stabilization_window_seconds: Annotated[int, Field(ge=0, le=3600)] | None = None
    """Seconds of past recommendations to consider: the lowest applies to scale-up, the highest to scale-down. Default:
    0 for scale-up, 300 for scale-down. Builtin scales down over at least twice the model load time."""
    select_policy: Literal["Max", "Min", "Disabled"] | None = None
    """Policy that applies: the one with the largest (Max) or smallest (Min) change. Disabled prevents scaling in this
    direction. Default: Max."""
    policies: list[ScalingPolicy] | None = Field(default=None, max_length=8)
    """Limits of the change. Default: 100 percent or 4 pods per 15 seconds for scale-up, 100 percent per 15 seconds for
    scale-down."""


class Behavior(Section):
    """Scaling rules, as HorizontalPodAutoscalerBehavior of autoscaling/v2."""

    scale_up: ScalingRules | None = None
    """Rules for scale-up."""
    scale_down: ScalingRules | None = None
    """Rules for scale-down."""


class Keda(Section):
    """Settings of the ScaledObject of provider KEDA."""

    triggers: list[Free] = Field(default=[], max_length=8)
    """Triggers, as in a ScaledObject. They are added to those of targets; without targets they are the only ones."""
    fallback_replicas: _Replicas | None = None
    """Number of replicas after three failed polls of a trigger. Default: replicas stay as they are."""


class Zero(Section):
    """Scale to zero by the Builtin provider. The activator of the operator's chart holds requests meanwhile."""

    idle_seconds: Annotated[int, Field(ge=60, le=86_400)] = 300
    """Seconds without a request after which the service is scaled to 0."""
    hold_seconds: Annotated[int, Field(ge=1, le=3600)] = 120
    """Seconds for which a request waits for a pod. It is answered with 503 afterwards."""
    max_held_requests: Annotated[int, Field(ge=1, le=1000)] = 100
    """Maximum number of requests that each pod of the activator holds. Others are answered with 429."""


class Autoscaling(Section):
    """Automatic scaling of `spec.replicas`, enabled if present."""

    provider: Literal["Builtin", "HPA", "KEDA"] = "Builtin"
    """Builtin: the operator scrapes the pods' metrics and sets replicas. HPA: a HorizontalPodAutoscaler sets replicas;
    it requires a custom-metrics adapter. KEDA: a ScaledObject sets replicas; it requires KEDA, and keda.enabled of the
    operator's chart."""
    min_replicas: Annotated[int, Field(ge=0, le=1000)] = 1
    """Minimum number of replicas. 0 only with zero or keda.triggers."""
    max_replicas: _Replicas
    """Maximum number of replicas."""
    targets: Targets = Targets()
    """Target load per replica. Default if no target is set: 2 queued requests."""
    behavior: Behavior | None = None
    """Rate limits of scaling, as in autoscaling/v2."""
    polling_interval_seconds: Annotated[int, Field(ge=1, le=300)] | None = Field(
        default=None,
        description=f"Seconds between two reads of the pods' metrics. Default: {POLLING_SECONDS}, with KEDA "
        f"{KEDA_POLLING_SECONDS}. Not with HPA.",
    )
    keda: Keda | None = None
    """Settings of provider KEDA."""
    zero: Zero | None = None
    """Scales an idle service to 0 if present ({} is enough), and back when a request arrives. Only with Builtin and
    minReplicas 0. Requires activator.enabled of the operator's chart."""
