"""What a request has done to its logits, as its answer stands before a step: plain numpy arrays, no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from runtime.request.engine_messages import LogitsProcessorParams, RequestSpec

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Shaped(NamedTuple):
    """Of the token ids whose logits a step changes, each once, in their order: all [ids]."""

    ids: Ints
    seen: Ints  # how often prompt and answer hold it; 0 where nothing is asked of that
    counts: Ints  # how often the answer does
    bias: Floats
    least: Ints  # of the answer's positions, those below it may not choose it


class Shaper:
    """One request's. An end of sequence or a stop token is never counted: it is no part of an answer, and what follows
    one in a block is often the same again.

    Attributes:
        penalties: repetition, presence, frequency.
    """

    def __init__(self, spec: RequestSpec, asked: LogitsProcessorParams, eos: Sequence[int]) -> None:
        self.penalties = (asked.repetition, asked.presence, asked.frequency)
        self._counts = self.penalties != (1.0, 0.0, 0.0)
        self._repeats = asked.repetition != 1.0
        self._ends = np.array(sorted({*eos, *spec.stop_ids}), dtype=np.int64)
        self._least = asked.min_tokens
        self._bias = asked.bias
        nothing = np.zeros(0, dtype=np.int64)
        self._prompt = self._counted(np.array(spec.prompt, dtype=np.int64)) if self._repeats else (nothing, nothing)
        always = {*asked.bias, *(self._ends.tolist() if asked.min_tokens else ())}
        self._always = np.array(sorted(always), dtype=np.int64)

    def shaped(self, answer: Ints) -> Shaped:
        """`answer`: the ids that stand in the answer, wherever."""
        there, often = self._counted(answer) if self._counts else (answer[:0], answer[:0])
        before, occurrences = self._prompt
        ids = np.unique(np.concatenate([self._always, there, before]))
        counts, seen, least = (np.zeros(len(ids), dtype=np.int64) for _ in range(3))
        counts[ids.searchsorted(there)] = often
        if self._repeats:
            seen += counts
            seen[ids.searchsorted(before)] += occurrences
        bias = np.zeros(len(ids))
        for token, value in self._bias.items():
            bias[ids.searchsorted(token)] = value
        if self._least:
            least[ids.searchsorted(self._ends)] = self._least
        return Shaped(ids, seen, counts, bias, least)

    def _counted(self, ids: Ints) -> tuple[Ints, Ints]:
        found, counts = np.unique(ids[~np.isin(ids, self._ends)], return_counts=True)
        return found, counts.astype(np.int64)
