"""Reasons of steps that are not replayed from CUDA graphs. The worker counts them, and metrics have them as a label.

This module has no dependencies: benchmarks import the worker without msgspec, and frontend processes have no torch.
"""

from __future__ import annotations

import enum


class EagerReason(enum.StrEnum):
    """Why a step ran eagerly, at least in part. The value is the label of the metric."""

    GRAPHS_DISABLED = "off"
    TOO_LARGE = "prefill"  # no graph has as many rows
    NOT_CAPTURED = "new"  # no graph has this shape
    SAMPLING_EAGER = "flag"  # sampling is not captured
    BATCH_INVARIANT = "apart"  # sampling ran per request
    LOGITS_PROCESSORS = "shaped"  # a request has logits processors

    @property
    def stats_field(self) -> str:
        """The field of `EngineStats` with the number of these steps."""
        return f"steps_eager_{self.name.lower()}"
