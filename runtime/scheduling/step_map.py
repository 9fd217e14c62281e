"""The step map of a request: the denoising step that wrote each of its tokens (docs/research/rollouts.md#step-maps)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from runtime.request.block_layout import BlockLayout
from runtime.scheduling.step_plan import MASKED, UNMASKED, Bytes, Ints


class StepMap:
    """Stores the number of the step that wrote each position, int32 [size]; 0 where none did.

    Args:
        size: positions of the request.
        prompt_len: tokens of its prompt.
        layout: its blocks.
        revises: the algorithm may change or mask UNMASKED positions again.
        uniform_noise: all positions of an open block are MASKED before each step.

    Attributes:
        last: step of the last change. With `uniform_noise`, of the first of the latest steps in a row that
            accepted the same token.
        first: step in which the position was first unmasked. None: without `revises` it is `last`.
    """

    def __init__(self, size: int, prompt_len: int, layout: BlockLayout, *, revises: bool, uniform_noise: bool) -> None:
        self.last = np.zeros(size, dtype=np.int32)
        self.first = np.zeros(size, dtype=np.int32) if revises and not uniform_noise else None
        self._prompt_len, self._layout, self._uniform_noise = prompt_len, layout, uniform_noise

    def add(
        self, start: int, before: tuple[Ints, Bytes], after: tuple[npt.NDArray[np.int64], npt.NDArray[np.int8]],
        step: int,
    ) -> None:  # fmt: skip
        """Records a step for the positions from `start` on.

        Args:
            before, after: their tokens and states.
            step: number of the step. The first token of a block may come from the prefill, before step 1.
        """
        (tokens, state), (new_tokens, new_state) = before, after
        last = self.last[start : start + len(tokens)]
        if self._uniform_noise:
            last[new_state != UNMASKED] = 0
            changed = (new_state == UNMASKED) & ((last == 0) | (new_tokens != tokens))
        else:
            changed = (new_state == UNMASKED) & ((state == MASKED) | (new_tokens != tokens))
        last[changed] = max(step, 1)
        if self.first is not None:
            first = self.first[start : start + len(tokens)]
            first[changed & (first == 0)] = max(step, 1)

    def restart(self, start: int) -> None:
        """Forgets the steps of the positions from `start` on, whose block begins again."""
        self.last[start:] = 0

    def between(self, start: int, end: int) -> tuple[list[int], list[int] | None, list[int]]:
        """Returns first and last steps of the positions ``[start, end)``, and their ordinals in their blocks, from 1.

        An ordinal counts only steps that unmasked positions of the block. Last steps are None without `revises`.
        """
        first = self.last if self.first is None else self.first
        ordinals: list[int] = []
        at = start
        while at < end:
            block = self._layout.block_start(self._prompt_len, at)
            last = block + self._layout.size
            here = first[at : min(last, end)]
            distinct = np.unique(first[block:last])
            ordinals += np.searchsorted(distinct[distinct > 0], here, side="right").tolist()
            at = last
        return first[start:end].tolist(), None if self.first is None else self.last[start:end].tolist(), ordinals
