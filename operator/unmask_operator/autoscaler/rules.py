"""What ``spec.autoscaling`` asks for, with the defaults of autoscaling/v2's behavior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unmask_operator.api.autoscaling import DEFAULT_TARGETS, GAUGES, POLLING_SECONDS, Autoscaling
from unmask_operator.api.errors import wrong_values

TOLERANCE = 0.1  # relative; a load this close to the target changes nothing (the default of the HPA controller too)


@dataclass(frozen=True)
class Policy:
    """At most `value` pods or per cent of them may come or go within `period` seconds."""

    type: str  # Pods | Percent
    value: int
    period: int


@dataclass(frozen=True)
class Direction:
    """How fast replicas may change one way."""

    window: int  # seconds over which recommendations are stabilised
    policies: tuple[Policy, ...]
    select: str = "Max"  # the policy that lets most change; Min, or Disabled (never this way)

    @classmethod
    def read(cls, given: Mapping[str, Any], default: Direction) -> Direction:
        policies = tuple(Policy(p["type"], p["value"], p["periodSeconds"]) for p in given.get("policies") or ())
        window = given.get("stabilizationWindowSeconds")
        return cls(
            default.window if window is None else window,
            policies or default.policies,
            given.get("selectPolicy") or default.select,
        )


UP = Direction(0, (Policy("Pods", 4, 15), Policy("Percent", 100, 15)))
DOWN = Direction(300, (Policy("Percent", 100, 15),))


@dataclass(frozen=True)
class Rules:
    """`spec.autoscaling` of provider Builtin."""

    minimum: int = 1
    maximum: int = 1
    targets: Mapping[str, float] = field(default_factory=lambda: DEFAULT_TARGETS)  # what one replica should carry
    up: Direction = UP  # its window is the panic window: a burst must last that long before replicas are added
    # Its window is the stable window, unless loading takes long: replicas go only when all of it needed fewer.
    down: Direction = DOWN
    polling: float = POLLING_SECONDS  # seconds between two looks at the pods

    def clamp(self, replicas: int) -> int:
        return min(max(replicas, self.minimum), self.maximum)

    @classmethod
    def read(cls, spec: Mapping[str, Any]) -> Rules | None:
        """The rules of a resource's spec, None where the builtin autoscaler has no say (also while suspended, or where
        another version's value says who knows what)."""
        scaling = spec.get("autoscaling")
        if not scaling or spec.get("suspend") or wrong_values(Autoscaling, scaling):
            return None
        if scaling.get("provider", "Builtin") != "Builtin":
            return None
        behavior = scaling.get("behavior") or {}
        given = scaling.get("targets") or {}
        minimum = scaling.get("minReplicas", 1)
        return cls(
            minimum,
            max(minimum, scaling.get("maxReplicas", minimum)),
            {name: float(given[name]) for name in GAUGES if given.get(name)} or DEFAULT_TARGETS,
            Direction.read(behavior.get("scaleUp") or {}, UP),
            Direction.read(behavior.get("scaleDown") or {}, DOWN),
            scaling.get("pollingIntervalSeconds") or POLLING_SECONDS,
        )
