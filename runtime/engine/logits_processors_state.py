"""Host state of the logits processors of a request, as numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from runtime.request.engine_messages import LogitsProcessorParams, RequestSpec

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class TokenAdjustments(NamedTuple):
    """The token ids whose logits a step changes, sorted and unique; all arrays have the shape [ids].

    Attributes:
        ids: the token ids.
        repetition_counts: occurrences in the prompt and the output; 0 without a repetition penalty.
        output_counts: occurrences in the output.
        bias: logit bias.
        min_tokens: the id is forbidden at output positions below this one.
    """

    ids: Ints
    repetition_counts: Ints
    output_counts: Ints
    bias: Floats
    min_tokens: Ints


class LogitsProcessorState:
    """Computes the adjustments of one request from its current output.

    End-of-sequence ids and stop tokens are not counted: they are not part of the output, and the positions after one in
    a block often hold the same id.

    Args:
        spec: the request.
        params: its logit bias, penalties and min_tokens.
        eos_ids: end-of-sequence ids of the model.

    Attributes:
        penalties: repetition, presence and frequency.
    """

    def __init__(self, spec: RequestSpec, params: LogitsProcessorParams, eos_ids: Sequence[int]) -> None:
        self.penalties = (params.repetition, params.presence, params.frequency)
        self._counts_output = self.penalties != (1.0, 0.0, 0.0)
        self._counts_prompt = params.repetition != 1.0
        self._end_ids = np.array(sorted({*eos_ids, *spec.stop_ids}), dtype=np.int64)
        self._min_tokens = params.min_tokens
        none = np.zeros(0, dtype=np.int64)
        self._prompt = self._count(np.array(spec.prompt, dtype=np.int64)) if self._counts_prompt else (none, none)
        always = {*params.bias, *(self._end_ids.tolist() if params.min_tokens else ())}
        self._always = np.array(sorted(always), dtype=np.int64)
        self._bias_ids = np.array(list(params.bias), dtype=np.int64)
        self._bias = np.array(list(params.bias.values()), dtype=np.float64)

    def adjustments(self, output: Ints) -> TokenAdjustments:
        """Returns the adjustments for a step.

        Args:
            output: ids of the output that are not MASKED, in any order.
        """
        output_ids, occurrences = self._count(output) if self._counts_output else (output[:0], output[:0])
        prompt_ids, prompt_occurrences = self._prompt
        ids = np.unique(np.concatenate([self._always, output_ids, prompt_ids]))
        output_counts, repetition_counts, min_tokens = (np.zeros(len(ids), dtype=np.int64) for _ in range(3))
        output_counts[ids.searchsorted(output_ids)] = occurrences
        if self._counts_prompt:
            repetition_counts += output_counts
            repetition_counts[ids.searchsorted(prompt_ids)] += prompt_occurrences
        bias = np.zeros(len(ids))
        bias[ids.searchsorted(self._bias_ids)] = self._bias
        if self._min_tokens:
            min_tokens[ids.searchsorted(self._end_ids)] = self._min_tokens
        return TokenAdjustments(ids, repetition_counts, output_counts, bias, min_tokens)

    def _count(self, ids: Ints) -> tuple[Ints, Ints]:
        """Returns the unique ids without `_end_ids`, and the occurrences of each."""
        found, counts = np.unique(ids[~np.isin(ids, self._end_ids)], return_counts=True)
        return found, counts.astype(np.int64)
