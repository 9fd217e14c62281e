"""Scaling rules of ``spec.autoscaling`` and their limits of change, with the semantics of autoscaling/v2."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from pydantic import ValidationError

from unmask_operator.api import autoscaling
from unmask_operator.api.autoscaling import DEFAULT_TARGETS, POLLING_SECONDS, Behavior, ScalingPolicy, ScalingRules
from unmask_operator.autoscaler.history import History

TOLERANCE = 0.1  # relative deviation from the target without scaling; the HPA controller's default


@dataclass(frozen=True)
class Direction:
    """Scaling rules of one direction."""

    window: int  # stabilization window in seconds
    policies: Sequence[ScalingPolicy]
    select: str = "Max"  # the policy with the largest change; or Min, Disabled

    @classmethod
    def read(cls, scaling_rules: ScalingRules | None, default: Self) -> Self:
        if scaling_rules is None:
            return default
        window, policies = scaling_rules.stabilization_window_seconds, scaling_rules.policies or default.policies
        select = scaling_rules.select_policy or default.select
        return cls(default.window if window is None else window, policies, select)


_PODS = ScalingPolicy.model_validate({"type": "Pods", "value": 4, "periodSeconds": 15})
_PERCENT = ScalingPolicy.model_validate({"type": "Percent", "value": 100, "periodSeconds": 15})
UP = Direction(0, (_PODS, _PERCENT))
DOWN = Direction(300, (_PERCENT,))


@dataclass(frozen=True)
class Rules:
    """`spec.autoscaling` with provider Builtin."""

    minimum: int = 1
    maximum: int = 1
    targets: Mapping[str, float] = field(default_factory=lambda: DEFAULT_TARGETS)  # target load per replica
    up: Direction = UP  # its window: the minimum duration of a burst before scale-up
    # Its window is the stable window, which a long model load time extends.
    down: Direction = DOWN
    polling: float = POLLING_SECONDS  # seconds between samples
    zero: autoscaling.Zero | None = None  # scale to zero; `minimum` is 1 then

    def clamp(self, replicas: int) -> int:
        return min(max(replicas, self.minimum), self.maximum)

    @classmethod
    def read(cls, spec: Mapping[str, Any]) -> Self | None:
        """Parses the rules of a spec.

        Returns:
            None if the resource is suspended, has another provider, or has a value that this version does not support.
        """
        try:
            scaling = autoscaling.Autoscaling.model_validate(spec.get("autoscaling"), extra="ignore")
        except ValidationError:
            return None
        if spec.get("suspend") or scaling.provider != "Builtin":
            return None
        behavior = scaling.behavior or Behavior()
        up, down = Direction.read(behavior.scale_up, UP), Direction.read(behavior.scale_down, DOWN)
        low, high = max(scaling.min_replicas, 1), max(scaling.min_replicas, scaling.max_replicas)
        targets = scaling.targets.model_dump(by_alias=True, exclude_none=True) or DEFAULT_TARGETS
        return cls(low, high, targets, up, down, scaling.polling_interval_seconds or POLLING_SECONDS, scaling.zero)


def limit(replicas: int, rules: Direction, history: History, now: datetime, *, up: bool) -> int:
    """Returns the most (`up`) or the fewest replicas that the policies allow.

    Percentages are rounded away from 0 for scale-up and towards 0 for scale-down, so that small numbers can change. The
    product is a float64 as in the HPA controller: 10 % more than 100 replicas are 111, and 80 % fewer than 10 is 1.
    """
    if rules.select == "Disabled":
        return replicas
    sign, rounded, farthest, nearest = (1, math.ceil, max, min) if up else (-1, int, min, max)
    limits = []
    for policy in rules.policies:
        start, change = replicas - history.change_within(now, policy.period_seconds), sign * policy.value
        limits.append(start + change if policy.type == "Pods" else rounded(start * (1 + change / 100)))
    return farthest(replicas, nearest(limits) if rules.select == "Min" else farthest(limits))
