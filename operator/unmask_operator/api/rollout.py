"""`spec.rolloutStrategy` and `spec.podDisruptionBudget`: pod counts during rollouts and node drains."""

from pydantic import Field

from unmask_operator.api.base import CountOrPercent, Section


class RolloutStrategy(Section):
    """Limits of a rolling update."""

    max_surge: CountOrPercent = Field(
        default=1, description="Maximum number of pods above the desired number during a rollout."
    )
    max_unavailable: CountOrPercent = Field(
        default=0, description="Maximum number of pods below the desired number during a rollout."
    )


class PodDisruptionBudget(Section):
    """Limits of voluntary disruptions. Without a field: maxUnavailable 1."""

    min_available: CountOrPercent | None = Field(default=None, description="Minimum number of available pods.")
    max_unavailable: CountOrPercent | None = Field(default=None, description="Maximum number of unavailable pods.")
