"""How long steps took and how large they were, kept for whoever asks next."""

from __future__ import annotations

from collections import deque

from runtime.request.engine_messages import EngineStats
from runtime.worker.runner_stats import OBSERVATIONS


class Observed:
    """What was observed since the last report: the latest, if very much was."""

    def __init__(self) -> None:
        self.step_seconds: deque[float] = deque(maxlen=OBSERVATIONS)
        self.device_seconds: deque[float] = deque(maxlen=OBSERVATIONS)
        self.host_seconds: deque[float] = deque(maxlen=OBSERVATIONS)
        self.batch_sizes: deque[int] = deque(maxlen=OBSERVATIONS)
        self.block_steps: deque[int] = deque(maxlen=OBSERVATIONS)

    def step(self, requests: int, seconds: float, *, whole: float, device: float | None) -> None:
        """Args:
        seconds: from the plan on. whole: with what came before it. device: the device's part, None where there is none.
        Of a step that began before the one before it had ended both count from that end.
        """
        self.step_seconds.append(seconds)
        self.batch_sizes.append(requests)
        if device is not None:
            self.device_seconds.append(device)
            self.host_seconds.append(max(whole - device, 0.0))

    def report(self, stats: EngineStats) -> None:
        """Hand all of it over."""
        for name, observed in vars(self).items():
            setattr(stats, name, list(observed))
            observed.clear()
