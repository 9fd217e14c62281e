"""`spec.autoscaling`: who moves `replicas`, between which bounds, towards which load."""

from typing import Annotated, Literal

from pydantic import Field

from unmask_operator.api.base import Section

POLLING_SECONDS = 5
# A target -> the runtime's gauge that shows the load, and how much of the target one of the gauge is.
GAUGES = {
    "queuedRequestsPerReplica": ("unmask_requests_waiting", 1),
    "runningRequestsPerReplica": ("unmask_requests_running", 1),
    "kvCacheUtilizationPercent": ("unmask_kv_usage_ratio", 100),
}
# What a pod tells besides, in our words: how many requests it runs at most, and seconds that its model took to load.
EXTRA_GAUGES = {"room": ("unmask_requests_running_most", 1), "loaded": ("unmask_model_load_seconds", 1)}
DEFAULT_TARGETS = {"queuedRequestsPerReplica": 2}  # of a spec that names none

_Replicas = Annotated[int, Field(ge=1, le=1000)]
_Target = Annotated[int, Field(ge=1, le=100_000)]


class Targets(Section):
    """Load that one replica should carry; the metric that asks for the most replicas wins."""

    queued_requests_per_replica: _Target | None = Field(
        default=None, description="Requests that wait for a place in a batch. (unmask_requests_waiting)"
    )
    running_requests_per_replica: _Target | None = Field(
        default=None, description="Requests being decoded. (unmask_requests_running)"
    )
    kv_cache_utilization_percent: Annotated[int, Field(ge=1, le=100)] | None = Field(
        default=None, description="Share of the KV cache in use, in percent. (unmask_kv_usage_ratio)"
    )


class ScalingPolicy(Section):
    """How much may change within a time."""

    type: Literal["Pods", "Percent"] = Field(description="Unit of value.")
    value: Annotated[int, Field(ge=1, le=100_000)] = Field(description="The most replicas, or percent of them.")
    period_seconds: Annotated[int, Field(ge=1, le=1800)] = Field(description="Length of the time, in seconds.")


class ScalingRules(Section):
    """One direction, as autoscaling/v2's HPAScalingRules."""

    stabilization_window_seconds: Annotated[int, Field(ge=0, le=3600)] | None = Field(
        default=None,
        description="Seconds over which the most careful decision counts. Default: 0 up, 300 down. With Builtin never "
        "less, down, than twice the time that the pods take to load.",
    )
    select_policy: Literal["Max", "Min", "Disabled"] | None = Field(
        default=None, description="Which policy counts; Disabled forbids the direction. Default: Max."
    )
    policies: list[ScalingPolicy] | None = Field(
        default=None,
        max_length=8,
        description="Limits of the change. Default: up 100 percent or 4 pods in 15 seconds, down 100 percent in 15.",
    )


class Behavior(Section):
    """As autoscaling/v2's HorizontalPodAutoscalerBehavior."""

    scale_up: ScalingRules | None = Field(default=None, description="Limits of growing.")
    scale_down: ScalingRules | None = Field(default=None, description="Limits of shrinking.")


class Autoscaling(Section):
    """Present: something moves `spec.replicas`."""

    provider: Literal["Builtin", "HPA"] = Field(
        default="Builtin",
        description="Builtin: the operator reads the pods' metrics itself. HPA: a HorizontalPodAutoscaler does, and "
        "needs a custom-metrics adapter.",
    )
    min_replicas: _Replicas = Field(default=1, description="The fewest replicas.")
    max_replicas: _Replicas = Field(description="The most replicas.")
    targets: Targets = Field(
        default_factory=Targets,
        description="Load that one replica should carry. Default, when none is given: 2 queued requests.",
    )
    behavior: Behavior | None = Field(default=None, description="How fast replicas may change, as in autoscaling/v2.")
    polling_interval_seconds: Annotated[int, Field(ge=1, le=300)] | None = Field(
        default=None,
        description=f"Seconds between two looks at the pods' metrics. Default: {POLLING_SECONDS}. Only with Builtin.",
    )
