"""Times and sizes of the latest steps, for the statistics of the engine."""

from __future__ import annotations

from collections import deque

from runtime.request.engine_messages import EngineStats
from runtime.worker.model_runner import OBSERVATIONS


class StepStats:
    """Stores the latest observations since the last report."""

    def __init__(self) -> None:
        self.step_seconds: deque[float] = deque(maxlen=OBSERVATIONS)
        self.device_seconds: deque[float] = deque(maxlen=OBSERVATIONS)
        self.host_seconds: deque[float] = deque(maxlen=OBSERVATIONS)
        self.batch_sizes: deque[int] = deque(maxlen=OBSERVATIONS)
        self.block_steps: deque[int] = deque(maxlen=OBSERVATIONS)

    def record(self, requests: int, seconds: float, *, total_seconds: float, device_seconds: float | None) -> None:
        """Records a step.

        If a step was launched before the previous one ended, its times are measured from the end of the previous step.

        Args:
            requests: number of requests in the batch.
            seconds: time since planning began.
            total_seconds: time since scheduling began.
            device_seconds: device time. None: unknown.
        """
        self.step_seconds.append(seconds)
        self.batch_sizes.append(requests)
        if device_seconds is not None:
            self.device_seconds.append(device_seconds)
            self.host_seconds.append(max(total_seconds - device_seconds, 0.0))

    def flush_to(self, stats: EngineStats) -> None:
        """Moves all observations to `stats`."""
        for name, observed in vars(self).items():
            setattr(stats, name, list(observed))
            observed.clear()
