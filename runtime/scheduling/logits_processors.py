"""Logits processors: logit bias, penalties and min_tokens (docs/guide/decoding.md#logits-processors).

Each request has a `LogitsProcessorState` on the host. A step collects the inputs of all requests, and the device
applies them to the logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from runtime.algorithms.logits_ops import LogitsOps
from runtime.scheduling.step_plan import UNMASKED, Bools, Floats, Ints, LogitsProcessorBatch

if TYPE_CHECKING:
    from runtime.request.engine_messages import LogitsProcessorParams, RequestSpec
    from runtime.scheduling.request import Block, Request

CHUNK_ROWS = 256  # bounds the memory: a row may have as many ids as its request has tokens
PREFIX = "logits_processors_"
FIELDS = tuple(field.name for field in fields(LogitsProcessorBatch))


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
        before, after = _pad(self._output, size, -1), _pad(output, size, -1)
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


def make_logits_processor_batch(
    owners: Sequence[Request], blocks: Sequence[Block], size: int
) -> LogitsProcessorBatch | None:
    """Returns the inputs of the logits processors of a step; None if no request has one.

    Args:
        owners: request of each block.
        blocks: blocks of the step.
        size: positions of the largest block.
    """
    indices: dict[int, int] = {}
    adjustments: list[tuple[tuple[float, float, float], TokenAdjustments]] = []
    n = len(blocks)
    request_index, output_offset = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.int64)
    current_token = np.full((n, size), -1, dtype=np.int64)
    for i, (request, block) in enumerate(zip(owners, blocks, strict=True)):
        processors = request.logits_processors
        if processors is None:
            continue
        if request.arrival_index not in indices:
            indices[request.arrival_index] = len(adjustments)
            adjustments.append((processors.penalties, processors.adjustments(request.output_by_position())))
        request_index[i] = indices[request.arrival_index]
        output_offset[i] = block.start - request.prompt_len
        inside = block.start + np.arange(block.size) < request.end
        current_token[i, : block.size] = np.where((block.state == UNMASKED) & inside, block.tokens, -1)
    if not adjustments:
        return None
    max_ids = max(max(len(each.ids) for _, each in adjustments), 1)

    def stacked(name: str) -> np.ndarray:
        parts = [getattr(each, name) for _, each in adjustments]
        # Padding repeats the last id, or is id 0 with zero adjustments. Neither changes a logit.
        return np.stack([_pad(part, max_ids, part[-1] if len(part) else 0) for part in parts])

    return LogitsProcessorBatch(
        request_index=request_index,
        output_offset=output_offset,
        current_token=current_token,
        penalties=np.array([penalties for penalties, _ in adjustments]),
        **{name: stacked(name) for name in TokenAdjustments._fields},
    )


def logits_processor_arrays(batch: LogitsProcessorBatch) -> dict[str, np.ndarray]:
    """Returns the fields of `batch` by the names of the input arrays of a step."""
    return {PREFIX + name: getattr(batch, name) for name in FIELDS}


def apply_logits_processors(
    logits: torch.Tensor, inputs: Mapping[str, torch.Tensor], block: torch.Tensor, at: torch.Tensor,
    logits_ops: LogitsOps,
) -> None:  # fmt: skip
    """Applies the logits processors of the requests in place. Synchronizes with the host, so it cannot be captured.

    Args:
        logits: [rows, vocab].
        inputs: the arrays of `logits_processor_arrays` on the device.
        block: int64 [rows], index of each row's block in the plan.
        at: int64 [rows], offset of each row in its block.
    """
    request = inputs[PREFIX + "request_index"][block]
    for rows in torch.split((request >= 0).nonzero()[:, 0], CHUNK_ROWS):
        chunk_inputs = {name: inputs[PREFIX + name][request[rows]] for name in (*TokenAdjustments._fields, "penalties")}
        chunk_inputs["position"] = inputs[PREFIX + "output_offset"][block[rows]] + at[rows]
        chunk_inputs["current_token"] = inputs[PREFIX + "current_token"][block[rows], at[rows]]
        chunk = logits[rows]
        process_logits(chunk, chunk_inputs, logits_ops)
        logits[rows] = chunk


def _pad(values: np.ndarray, size: int, fill: float) -> np.ndarray:
    """Returns `values` [n] with `fill` up to `size`. ``np.pad`` takes ten times as long."""
    padded = np.full(size, fill, dtype=values.dtype)
    padded[: len(values)] = values
    return padded


def process_logits(logits: torch.Tensor, inputs: Mapping[str, torch.Tensor], logits_ops: LogitsOps) -> None:
    """Changes `logits` [rows, vocab] in place: adds the bias, then applies the repetition penalty, then the others.

    The token at a row's own position does not count for the penalties of that row.

    Args:
        inputs: the fields of `TokenAdjustments`, [rows, n] each, where a row of `ids` may repeat an id with the same
            values; float64 `penalties` [rows, 3]; int64 [rows] `position` in the output, and `current_token` at the
            row's own position if it is counted, else -1.
    """
    dtype, ids = logits.dtype, inputs["ids"]
    repetition, presence, frequency = (column[:, None].to(dtype) for column in inputs["penalties"].unbind(1))
    own = (ids == inputs["current_token"][:, None]).long()
    counts = (inputs["output_counts"] - own).clamp(min=0)
    values = logits_ops.gather(logits, ids) + inputs["bias"].to(dtype)
    repeated = torch.where(values > 0, values / repetition, values * repetition)
    values = torch.where(inputs["repetition_counts"] > own, repeated, values)
    values = values - frequency * counts.to(dtype) - presence * (counts > 0).to(dtype)
    values = values.masked_fill(inputs["position"][:, None] < inputs["min_tokens"], float("-inf"))
    logits_ops.scatter(logits, ids, values)
