"""The next forward of a step, for both outcomes of each block: it continues, or is final.

The device chooses from its counters (kernels/next_segments.py), before the host has processed the results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from runtime.kernels.next_segments import CHOSEN_ROWS, ENDS, FINAL, HEADER, LEFT, UNKNOWN, Offer
from runtime.kernels.segments import COUNT, FIELDS
from runtime.scheduling.request import Following, Request
from runtime.scheduling.step_plan import Ints32, SampledBlocks, StepPlan


@dataclass(frozen=True)
class NextStep:
    """Both outcomes of each request of a step.

    Attributes:
        batch: the requests of the next step.
        outcomes: int32 [n, OUTCOMES] (``kernels.next_segments``).
        if_all_continue: the plan of the next forward if all sampled blocks continue. None: it is not known.
        active_lora_modules: see `StepPlan`.
        max_rows, may_leave: see ``kernels.next_segments.Offer``.
        holds: whether the forward must wait until the host has processed the results. None: it need not.
    """

    batch: list[Following]
    outcomes: Ints32
    if_all_continue: StepPlan | None
    active_lora_modules: int
    max_rows: int
    may_leave: bool
    holds: Callable[[SampledBlocks], bool] | None = None

    def plan(self, choice: Ints32) -> StepPlan | None:
        """Returns the plan of the next forward; None if it depends on more than the counters.

        Args:
            choice: int32 [at least HEADER + n], the choice of the device (``kernels.next_segments``).
        """
        if choice[CHOSEN_ROWS] == UNKNOWN:
            return None
        chosen = choice[HEADER : HEADER + len(self.batch)]
        if not chosen.any():
            return self.if_all_continue
        pairs = self.outcomes[:, ENDS:].reshape(-1, 2, FIELDS)
        segments = pairs[np.arange(len(pairs)), (chosen == FINAL).astype(np.int64)]
        segments[chosen == LEFT, COUNT] = 0
        return StepPlan(segments, active_lora_modules=self.active_lora_modules)

    @property
    def requests(self) -> list[Request]:
        return [each.scheduled.request for each in self.batch]

    @property
    def offer(self) -> Offer:
        return Offer(len(self.batch), self.max_rows, int(self.may_leave))
