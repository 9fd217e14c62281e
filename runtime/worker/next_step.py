"""Chooses the forward of the next step from the counters of this one, before its results are processed on the host.

The device is idle meanwhile, so all that does not depend on the counters is computed before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from runtime.kernels.segments import COUNT
from runtime.scheduling.request import Request
from runtime.scheduling.step_plan import COUNTERS, UNMASKED, Ints, Ints32, SampledBlocks, StepPlan

MASKS, FIRST_MASKED, FIRST_EOS, FINISHED = map(COUNTERS.index, ("masks", "first_masked", "first_eos", "finished"))


class BlockEnd(NamedTuple):
    """When a block of a request ends, and when the output does. ``strategies.block_update`` has the same rules.

    Attributes:
        is_known: whether the next forward is known if the block continues, and if it is final.
        size: positions of the block.
        without_masks: a block without masks is final. Otherwise its algorithm says when it is.
        at_eos: an end-of-sequence id before the first mask ends the output.
        output_end: offset of the end of the output in the block. It may be larger than the block.
    """

    is_known: tuple[bool, bool]
    size: int
    without_masks: bool
    at_eos: bool
    output_end: int


@dataclass(frozen=True)
class NextStep:
    """Both outcomes of each request of a step.

    Attributes:
        requests: those of the next step. Each has one sampled block in this one.
        ends: one entry per request.
        if_all_continue: the plan of the next forward if all of these blocks continue. None: it is not known.
        if_continuing, if_final: int32 [n, columns], segment of each request if its block continues or is final. That of
            an unknown outcome is not valid.
        stop_ids: token ids that end the output of the requests `stopping`.
        active_lora_modules: see `StepPlan`.
        max_rows: maximum number of rows of a step.
    """

    requests: list[Request]
    ends: list[BlockEnd]
    if_all_continue: StepPlan | None
    if_continuing: Ints32
    if_final: Ints32
    stop_ids: Ints
    stopping: list[int]
    active_lora_modules: int
    max_rows: int

    def choose(self, sampled: SampledBlocks) -> StepPlan | None:
        """Returns the plan of the next forward; None if it depends on more than the counters."""
        numbers = (sampled.numbers[row].tolist() for row in (MASKS, FIRST_MASKED, FIRST_EOS, FINISHED))
        final = []  # lists are faster than arrays of so few numbers
        known = True
        for end, masks, first_masked, first_eos, finished in zip(self.ends, *numbers, strict=True):
            filled = first_masked if masks else end.size  # positions before the first mask
            if filled >= end.output_end or (end.at_eos and first_eos < filled):
                return None
            is_final = finished > 0 or (end.without_masks and not masks)
            final.append(is_final)
            known = known and end.is_known[is_final]
        if not known or (self.stopping and self._is_stopped(sampled)):
            return None
        if True not in final:
            return self.if_all_continue
        segments = self.if_final
        if not all(final):
            segments = np.where(np.array(final)[:, None], self.if_final, self.if_continuing)
        if sum(segments[:, COUNT].tolist()) > self.max_rows:
            return None
        return StepPlan(segments, active_lora_modules=self.active_lora_modules)

    def _is_stopped(self, sampled: SampledBlocks) -> bool:
        stopped = np.isin(sampled.tokens[self.stopping], self.stop_ids)
        return bool((stopped & (sampled.state[self.stopping] == UNMASKED)).any())
