"""Logits processors: collects the inputs of a step from its requests, and applies them to the logits on the device.

`runtime/scheduling/logits_processors.py` has the state of a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np
import torch

from runtime.algorithms.logits_ops import DEFAULT_LOGITS_OPS, LogitsOps
from runtime.scheduling.logits_processors import TokenAdjustments, padded
from runtime.scheduling.request import Block, Request
from runtime.scheduling.step_plan import UNMASKED, LogitsProcessorBatch

CHUNK_ROWS = 256  # bounds the memory: a row may have as many ids as its request has tokens
PREFIX = "logits_processors_"
FIELDS = tuple(field.name for field in fields(LogitsProcessorBatch))


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
        return np.stack([padded(part, max_ids, part[-1] if len(part) else 0) for part in parts])

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


def apply_to_rows(logits: torch.Tensor, batch: LogitsProcessorBatch, block: np.ndarray, at: np.ndarray) -> None:
    """Does the same for a step whose inputs are on the host, int64 [rows] each. `logits` have all columns."""
    arrays = logits_processor_arrays(batch)
    inputs = {name: torch.from_numpy(array).to(logits.device) for name, array in arrays.items()}
    index, offset = torch.from_numpy(np.stack([block, at])).to(logits.device)
    apply_logits_processors(logits, inputs, index, offset, DEFAULT_LOGITS_OPS)


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
