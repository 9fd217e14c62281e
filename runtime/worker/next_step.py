"""The next forward of a step, for both outcomes of each request: its block continues, or is final.

The device chooses from its counters (kernels/next_segments.py), before the host has processed the results.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runtime.kernels.next_segments import CHOSEN_ROWS, ENDS, HEADER, UNKNOWN
from runtime.kernels.segments import FIELDS
from runtime.scheduling.request import Request, ScheduledRequest
from runtime.scheduling.step_plan import UNMASKED, Ints, Ints32, SampledBlocks, StepPlan


@dataclass(frozen=True)
class NextStep:
    """Both outcomes of each request of a step.

    Attributes:
        batch: the requests of the next step. Each has one sampled block in this one.
        outcomes: int32 [n, OUTCOMES] (``kernels.next_segments``).
        if_all_continue: the plan of the next forward if all of these blocks continue. None: it is not known.
        stop_ids: token ids that end the output of the requests `stopping`.
        active_lora_modules: see `StepPlan`.
        max_rows: maximum number of rows of a step.
    """

    batch: list[ScheduledRequest]
    outcomes: Ints32
    if_all_continue: StepPlan | None
    stop_ids: Ints
    stopping: list[int]
    active_lora_modules: int
    max_rows: int

    def plan(self, choice: Ints32) -> StepPlan | None:
        """Returns the plan of the next forward; None if it depends on more than the counters.

        Args:
            choice: int32 [HEADER + n], the choice of the device (``kernels.next_segments``).
        """
        if choice[CHOSEN_ROWS] == UNKNOWN:
            return None
        final = choice[HEADER:]
        if not final.any():
            return self.if_all_continue
        pairs = self.outcomes[:, ENDS:].reshape(-1, 2, FIELDS)
        return StepPlan(pairs[np.arange(len(pairs)), final], active_lora_modules=self.active_lora_modules)

    @property
    def requests(self) -> list[Request]:
        return [scheduled.request for scheduled in self.batch]

    def is_stopped(self, sampled: SampledBlocks) -> bool:
        """Returns whether a stop id of a request may have ended its output."""
        if not self.stopping:
            return False
        stopped = np.isin(sampled.tokens[self.stopping], self.stop_ids)
        return bool((stopped & (sampled.state[self.stopping] == UNMASKED)).any())
