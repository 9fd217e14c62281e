"""State of a request's logits processors: logit bias, penalties and min_tokens.

docs/guide/decoding.md#logits-processors describes them. `runtime/worker/logits_processors.py` applies them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from runtime.scheduling.step_plan import Bools, Floats, Ints

if TYPE_CHECKING:
    from runtime.request.engine_messages import LogitsProcessorParams, RequestSpec


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
    """Keeps the adjustments of one request up to date with its output.

    The cost of a step depends on the positions that changed since the last call, not on the length of the output.

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
        prompt_ids, occurrences = self._count(np.array(spec.prompt if self._counts_prompt else [], dtype=np.int64))
        always = {*params.bias, *(self._end_ids.tolist() if params.min_tokens else ())}
        ids = np.unique(np.concatenate([np.array(sorted(always), dtype=np.int64), prompt_ids]))
        repetition_counts, output_counts, min_tokens = (np.zeros(len(ids), dtype=np.int64) for _ in range(3))
        repetition_counts[ids.searchsorted(prompt_ids)] = occurrences
        bias = np.zeros(len(ids))
        bias[ids.searchsorted(np.array(list(params.bias), dtype=np.int64))] = list(params.bias.values())
        if params.min_tokens:
            min_tokens[ids.searchsorted(self._end_ids)] = params.min_tokens
        self._adjustments = TokenAdjustments(ids, repetition_counts, output_counts, bias, min_tokens)
        self._is_static = np.ones(len(ids), dtype=np.bool_)  # [ids], of the prompt, the bias or min_tokens
        self._output = ids[:0]  # argument of the last call of `adjustments`

    def adjustments(self, output: Ints) -> TokenAdjustments:
        """Returns the adjustments for a step. Later calls do not change them.

        Args:
            output: the token id at each position of the output; -1 where it is MASKED.
        """
        if not self._counts_output:
            return self._adjustments
        size = max(len(output), len(self._output))
        before, after = padded(self._output, size, -1), padded(output, size, -1)
        changed = np.flatnonzero(before != after)
        if len(changed):
            self._update(self._count(before[changed]), self._count(after[changed]))
            self._output = output.copy()
        return self._adjustments

    def _update(self, removed: tuple[Ints, Ints], added: tuple[Ints, Ints]) -> None:
        """Replaces the adjustments. Each argument has unique ids and their occurrences."""
        current = self._adjustments
        new_ids = added[0][~_contains(current.ids, added[0])]
        if len(new_ids):
            at = current.ids.searchsorted(new_ids)
            current = TokenAdjustments._make(np.insert(values, at, 0) for values in current)
            current.ids[at + np.arange(len(at))] = new_ids
            self._is_static = np.insert(self._is_static, at, False)
        change = np.zeros(len(current.ids), dtype=np.int64)
        change[current.ids.searchsorted(added[0])] += added[1]
        change[current.ids.searchsorted(removed[0])] -= removed[1]
        output_counts = current.output_counts + change
        repetition_counts = current.repetition_counts + change if self._counts_prompt else current.repetition_counts
        current = current._replace(output_counts=output_counts, repetition_counts=repetition_counts)
        used = self._is_static | (output_counts > 0)
        if not used.all():
            current = TokenAdjustments._make(values[used] for values in current)
            self._is_static = self._is_static[used]
        self._adjustments = current

    def _count(self, ids: Ints) -> tuple[Ints, Ints]:
        """Returns the unique ids without `_end_ids` and -1, and the occurrences of each."""
        found, counts = np.unique(ids[(ids >= 0) & ~_contains(self._end_ids, ids)], return_counts=True)
        return found, counts.astype(np.int64)


def _contains(ids: Ints, values: Ints) -> Bools:
    """Returns which of `values` are in the sorted `ids`, bool [values]."""
    if not len(ids):
        return np.zeros(len(values), dtype=np.bool_)
    found: Bools = ids[np.minimum(ids.searchsorted(values), len(ids) - 1)] == values
    return found


def padded(values: np.ndarray, size: int, fill: float) -> np.ndarray:
    """Returns `values` [n] with `fill` up to `size`. ``np.pad`` takes ten times as long."""
    result = np.full(size, fill, dtype=values.dtype)
    result[: len(values)] = values
    return result
