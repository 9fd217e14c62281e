"""Statistics of a model runner: replayed and eager steps, and device time per step."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import torch

from runtime.worker.host_buffers import PinnedBuffer

OBSERVATIONS = 2**14  # maximum number of stored observations, as they may never be collected


@dataclass
class RunnerStats:
    """Statistics of steps.

    Attributes:
        replayed: steps that were replayed from CUDA graphs entirely.
        eager: number of steps not replayed from a CUDA graph, by reason: "off", graphs are disabled; "prefill", the
            step has too many rows; "new", its shape is not captured; "flag", sampling is not captured; "apart",
            sampling ran per request for batch invariance; "shaped", logits processors were applied.
        graph_bytes: device memory of CUDA graphs.
        last_device_seconds: device time of the last step. None: unknown.
    """

    replayed: int = 0
    eager: Counter[str] = field(default_factory=Counter)
    graph_bytes: int = 0
    last_device_seconds: float | None = None
    device_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=OBSERVATIONS))

    def count(self, reason: str) -> None:
        """Counts a step that ran eagerly for `reason`; "": it was replayed."""
        if reason:
            self.eager[reason] += 1
        else:
            self.replayed += 1


class DeviceTimer:
    """Measures the device time of each step that has results with CUDA events, without synchronization."""

    def __init__(self, device: torch.device, stats: RunnerStats) -> None:
        self.stats = stats
        self._begins: list[torch.cuda.Event] = []  # of this step and another
        if device.type == "cuda":
            self._begins = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        self.stats.last_device_seconds = None
        self._begins.reverse()
        if self._begins:
            self._begins[0].record()

    def end(self, buffer: PinnedBuffer, *, next_launched: bool = False) -> None:
        """Ends the measurement of a step whose results were copied through `buffer`.

        Args:
            next_launched: the forward of the next step was launched already.
        """
        if self._begins and buffer.done is not None:
            self.stats.last_device_seconds = self._begins[next_launched].elapsed_time(buffer.done) / 1e3
            self.stats.device_seconds.append(self.stats.last_device_seconds)
