"""Chooses the forward of the next step from the counters of this one, before its results are processed on the host.

The device is idle meanwhile, so all that does not depend on the counters is computed before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runtime.kernels.segments import COUNT
from runtime.scheduling.request import Request
from runtime.scheduling.step_plan import COUNTERS, UNMASKED, Ints, Ints32, SampledBlocks, StepPlan

MASKS, FIRST_MASKED, FIRST_EOS, FINISHED = map(COUNTERS.index, ("masks", "first_masked", "first_eos", "finished"))


@dataclass(frozen=True)
class NextStep:
    """Both outcomes of each request of a step.

    Lists have one entry per request.

    Attributes:
        requests: those of the next step. Each has one sampled block in this one.
        if_all_continue: the plan of the next forward if all of these blocks continue. None: it is not known.
        if_continuing, if_final: int32 [n, columns], segment of each request if its block continues or is final.
        is_known: whether the first and the second are known.
        ends_without_masks: a block without masks is final. Otherwise its algorithm says when it is.
        ends_at_eos: an end-of-sequence id may end the output.
        end_offset: offset of the end of the output in the block.
        stop_ids: token ids that end the output of the requests `stopping`.
        active_lora_modules: see `StepPlan`.
        max_rows: maximum number of rows of a step.
    """

    requests: list[Request]
    if_all_continue: StepPlan | None
    if_continuing: Ints32
    if_final: Ints32
    is_known: list[tuple[bool, bool]]
    ends_without_masks: list[bool]
    ends_at_eos: list[bool]
    end_offset: list[int]
    stop_ids: Ints
    stopping: list[int]
    active_lora_modules: int
    max_rows: int

    def choose(self, sampled: SampledBlocks) -> StepPlan | None:
        """Returns the plan of the next forward; None if it depends on more than the counters."""
        numbers = (sampled.numbers[row].tolist() for row in (MASKS, FIRST_MASKED, FIRST_EOS, FINISHED))
        blocks = zip(*numbers, self.ends_without_masks, self.ends_at_eos, self.end_offset, strict=True)
        final = []  # lists are faster than arrays of so few numbers
        for masks, first_masked, first_eos, finished, ends_without_masks, ends_at_eos, end_offset in blocks:
            if (ends_at_eos and first_eos < first_masked) or first_masked >= end_offset:
                return None
            final.append(finished > 0 or (ends_without_masks and not masks))
        if self.stopping and self._is_stopped(sampled):
            return None
        if True not in final:
            return self.if_all_continue
        if not all(known[is_final] for known, is_final in zip(self.is_known, final, strict=True)):
            return None
        segments = self.if_final
        if not all(final):
            segments = np.where(np.array(final)[:, None], self.if_final, self.if_continuing)
        if sum(segments[:, COUNT].tolist()) > self.max_rows:
            return None
        return StepPlan(segments, active_lora_modules=self.active_lora_modules)

    def _is_stopped(self, sampled: SampledBlocks) -> bool:
        stopped = np.isin(sampled.tokens[self.stopping], self.stop_ids)
        return bool((stopped & (sampled.state[self.stopping] == UNMASKED)).any())
