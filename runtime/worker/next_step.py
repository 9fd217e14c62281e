"""Chooses the forward of the next step from the counters of this one, before its results are processed on the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runtime.kernels.forward_batch import MAX_TILE_ROWS
from runtime.kernels.segments import COUNT, number_rows
from runtime.scheduling.request import Request
from runtime.scheduling.step_plan import COUNTERS, UNMASKED, Bools, Ints, Ints32, SampledBlocks

READ = [COUNTERS.index(name) for name in ("masks", "first_masked", "first_eos", "finished")]


@dataclass(frozen=True)
class NextStep:
    """Both outcomes of each request of a step, which are known while the device still runs it.

    Attributes:
        requests: those of the next step.
        logits_start: [n], ``Block.logits_start`` of the sampled block of each request.
        index: [n], index of this block among those of the step.
        end_offset: [n], offset of the end of the output in this block.
        if_continuing, if_final: int32 [n, columns], segment of each request if its block continues or is final.
        is_known: [2, n], whether the first and the second are known.
        finishes: [n], a block without masks may continue; its algorithm says when it ends.
        ends_at_eos: [n], an end-of-sequence id may end the output.
        stop_ids: token ids that end the output of the requests whose blocks are `stopping` [m].
        max_rows: maximum number of rows of a step.
    """

    requests: list[Request]
    logits_start: Ints
    index: Ints
    end_offset: Ints
    if_continuing: Ints32
    if_final: Ints32
    is_known: Bools
    finishes: Bools
    ends_at_eos: Bools
    stop_ids: Ints
    stopping: Ints
    max_rows: int

    def choose(self, sampled: SampledBlocks) -> Ints32 | None:
        """Returns the segments of the next forward; None if it depends on more than the counters."""
        masks, first_masked, first_eos, finished = sampled.numbers[READ][:, self.index]
        if ((self.ends_at_eos & (first_eos < first_masked)) | (first_masked >= self.end_offset)).any():
            return None
        if len(self.stopping):
            stopped = np.isin(sampled.tokens[self.stopping], self.stop_ids)
            if (stopped & (sampled.state[self.stopping] == UNMASKED)).any():
                return None
        final = (finished > 0) | ((masks == 0) & ~self.finishes)
        if not np.where(final, self.is_known[1], self.is_known[0]).all():
            return None
        segments = np.where(final[:, None], self.if_final, self.if_continuing)
        if segments[:, COUNT].sum() > self.max_rows:
            return None
        number_rows(segments, MAX_TILE_ROWS)
        return segments
