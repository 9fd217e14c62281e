"""`spec.rolloutStrategy` and `spec.podDisruptionBudget`: how many pods may be missing or too many."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from unmask_operator.api.base import CountOrPercent, Rule, Section

_NOTHING = (0, "0%")


class RolloutStrategy(Section):
    """How a new revision replaces the old one."""

    rules: ClassVar = (
        Rule(
            "!has(self.maxSurge) || (self.maxSurge != 0 && self.maxSurge != '0%') || "
            "(has(self.maxUnavailable) && self.maxUnavailable != 0 && self.maxUnavailable != '0%')",
            lambda r: r.max_surge not in _NOTHING or r.max_unavailable not in _NOTHING,
            "maxSurge and maxUnavailable must not both be 0: no pod could ever be replaced",
        ),
    )

    max_surge: CountOrPercent = Field(default=1, description="Pods above the wanted number during a rollout.")
    max_unavailable: CountOrPercent = Field(default=0, description="Pods below the wanted number during a rollout.")


class PodDisruptionBudget(Section):
    """How many pods a drain of nodes may take away at once. Neither field: maxUnavailable 1."""

    rules: ClassVar = (
        Rule(
            "!has(self.minAvailable) || !has(self.maxUnavailable)",
            lambda p: p.min_available is None or p.max_unavailable is None,
            "minAvailable and maxUnavailable exclude each other; remove one",
        ),
    )

    min_available: CountOrPercent | None = Field(default=None, description="Pods that must stay.")
    max_unavailable: CountOrPercent | None = Field(default=None, description="Pods that may be missing.")
