"""What a runner has done: steps by how they were launched, and how long the device took for each."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import torch

from runtime.worker.host_buffers import Staging

REASONS = ("off", "prefill", "new", "flag", "apart", "shaped")
OBSERVATIONS = 2**14  # that are kept for whoever asks; nobody may ever


@dataclass
class Ran:
    """`eager`: steps of which something was launched anew, by the reason: "off", nothing is recorded here; "prefill",
    of so many rows nothing is; "new", a shape that has come up too seldom; "flag", head and rules are not to be
    recorded; "apart", head and rules were done for each request by itself; "shaped", something is done to a request's
    logits. `graph_bytes`: of the device's memory, for recordings."""

    replayed: int = 0
    eager: Counter[str] = field(default_factory=Counter)
    graph_bytes: int = 0
    device: float | None = None  # seconds of the last step, None if they are not known
    device_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=OBSERVATIONS))

    def count(self, reason: str) -> None:
        """A step; "": replayed."""
        if reason:
            self.eager[reason] += 1
        else:
            self.replayed += 1


class Clock:
    """The device's time of each step that has results, by events of its own: nothing waits for them."""

    def __init__(self, device: torch.device, ran: Ran) -> None:
        self.ran = ran
        self._begins: list[torch.cuda.Event] = []  # of this step and another
        if device.type == "cuda":
            self._begins = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        self.ran.device = None
        self._begins.reverse()
        if self._begins:
            self._begins[0].record()

    def end(self, staging: Staging, *, ahead: bool = False) -> None:
        """The step's results have come through `staging`. `ahead`: the next one has begun."""
        if self._begins and staging.done is not None:
            self.ran.device = self._begins[ahead].elapsed_time(staging.done) / 1e3
            self.ran.device_seconds.append(self.ran.device)
