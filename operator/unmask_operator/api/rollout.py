"""`spec.rolloutStrategy` and `spec.podDisruptionBudget`: how many pods may be missing or too many."""

from pydantic import Field

from unmask_operator.api.base import CountOrPercent, Section


class RolloutStrategy(Section):
    """How a new revision replaces the old one."""

    max_surge: CountOrPercent = Field(default=1, description="Pods above the wanted number during a rollout.")
    max_unavailable: CountOrPercent = Field(default=0, description="Pods below the wanted number during a rollout.")


class PodDisruptionBudget(Section):
    """How many pods a drain of nodes may take away at once. Neither field: maxUnavailable 1."""

    min_available: CountOrPercent | None = Field(default=None, description="Pods that must stay.")
    max_unavailable: CountOrPercent | None = Field(default=None, description="Pods that may be missing.")
