"""The rules of ``spec.autoscaling``, and the limits of a change now, with the semantics of autoscaling/v2."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from pydantic import ValidationError

from unmask_operator.api.autoscaling import DEFAULT_TARGETS, POLLING_SECONDS, Autoscaling, Behavior, ScalingRules
from unmask_operator.autoscaler.history import History

TOLERANCE = 0.1  # relative; a load this close to the target changes nothing (as in the HPA controller)


@dataclass(frozen=True)
class Policy:
    """At most `value` pods, or percent of the pods, may be added or removed within `period` seconds."""

    type: str  # Pods | Percent
    value: int
    period: int


@dataclass(frozen=True)
class Direction:
    """Limits of scaling up or of scaling down."""

    window: int  # seconds over which recommendations are stabilized
    policies: tuple[Policy, ...]
    select: str = "Max"  # the policy with the largest change; Min: the smallest; Disabled: no change

    @classmethod
    def read(cls, scaling_rules: ScalingRules | None, default: Self) -> Self:
        if scaling_rules is None:
            return default
        policies = tuple(Policy(p.type, p.value, p.period_seconds) for p in scaling_rules.policies or ())
        window = scaling_rules.stabilization_window_seconds
        window = default.window if window is None else window
        return cls(window, policies or default.policies, scaling_rules.select_policy or default.select)


UP = Direction(0, (Policy("Pods", 4, 15), Policy("Percent", 100, 15)))
DOWN = Direction(300, (Policy("Percent", 100, 15),))


@dataclass(frozen=True)
class Rules:
    """`spec.autoscaling` of provider Builtin."""

    minimum: int = 1
    maximum: int = 1
    targets: Mapping[str, float] = field(default_factory=lambda: DEFAULT_TARGETS)  # load per replica
    up: Direction = UP  # its window is the panic window: replicas are added if a burst lasts that long
    # Its window is the stable window: replicas are removed if the whole window needed fewer.
    down: Direction = DOWN
    polling: float = POLLING_SECONDS  # seconds between two polls of the pods

    def clamp(self, replicas: int) -> int:
        return min(max(replicas, self.minimum), self.maximum)

    @classmethod
    def read(cls, spec: Mapping[str, Any]) -> Self | None:
        """Returns the rules of a spec.

        None: the builtin autoscaler does not scale the resource. That is also the case while it is suspended, or if
        the section has a value that this operator does not know.
        """
        try:
            scaling = Autoscaling.model_validate(spec.get("autoscaling"), extra="ignore")
        except ValidationError:
            return None
        if spec.get("suspend") or scaling.provider != "Builtin":
            return None
        behavior = scaling.behavior or Behavior()
        return cls(
            scaling.min_replicas,
            max(scaling.min_replicas, scaling.max_replicas),
            scaling.targets.model_dump(by_alias=True, exclude_none=True) or DEFAULT_TARGETS,
            Direction.read(behavior.scale_up, UP),
            Direction.read(behavior.scale_down, DOWN),
            scaling.polling_interval_seconds or POLLING_SECONDS,
        )


def up_limit(replicas: int, up: Direction, history: History, now: datetime) -> int:
    """Returns the maximum number of replicas now. Percentages are rounded up, so that one replica can grow."""
    if up.select == "Disabled":
        return replicas
    limits = []
    for policy in up.policies:
        start = replicas - history.change_within(now, policy.period)
        grown = start + policy.value if policy.type == "Pods" else -(-start * (100 + policy.value) // 100)
        limits.append(grown)
    return max(replicas, min(limits) if up.select == "Min" else max(limits))


def down_limit(replicas: int, down: Direction, history: History, now: datetime) -> int:
    """Returns the minimum number of replicas now. Percentages are rounded down, so that any replica can be removed."""
    if down.select == "Disabled":
        return replicas
    limits = []
    for policy in down.policies:
        start = replicas - history.change_within(now, policy.period)
        shrunk = start - policy.value if policy.type == "Pods" else start * (100 - policy.value) // 100
        limits.append(shrunk)
    return min(replicas, max(limits) if down.select == "Min" else min(limits))
