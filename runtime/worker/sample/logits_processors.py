"""Logits processors: logit bias, penalties and min_tokens. The host makes their inputs, the device applies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np
import torch

from runtime.algorithms.logits_ops import LogitsOps
from runtime.engine.logits_processors_state import TokenAdjustments
from runtime.engine.request import Block, Request
from runtime.engine.step_plan import UNMASKED, LogitsProcessorBatch
from runtime.worker.sample.logits_processors_ops import LogitsProcessorInputs, process_logits

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
            adjustments.append((processors.penalties, processors.adjustments(request.output_tokens())))
        request_index[i] = indices[request.arrival_index]
        output_offset[i] = block.start - request.prompt_len
        inside = block.start + np.arange(block.size) < request.end
        current_token[i, : block.size] = np.where((block.state == UNMASKED) & inside, block.tokens, -1)
    if not adjustments:
        return None
    max_ids = max(max(len(each.ids) for _, each in adjustments), 1)

    def stacked(name: str) -> np.ndarray:
        return np.stack([_padded(getattr(each, name), max_ids) for _, each in adjustments])

    return LogitsProcessorBatch(
        request_index=request_index,
        output_offset=output_offset,
        current_token=current_token,
        ids=stacked("ids"),
        repetition_counts=stacked("repetition_counts"),
        output_counts=stacked("output_counts"),
        bias=stacked("bias"),
        min_tokens=stacked("min_tokens"),
        penalties=np.array([penalties for penalties, _ in adjustments]),
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
        chunk_request, chunk_at, chunk_block = request[rows], at[rows], block[rows]
        chunk_inputs = LogitsProcessorInputs(
            **{
                name: inputs[PREFIX + name][chunk_request]
                for name in ("ids", "repetition_counts", "output_counts", "bias", "min_tokens", "penalties")
            },
            position=inputs[PREFIX + "output_offset"][chunk_block] + chunk_at,
            current_token=inputs[PREFIX + "current_token"][chunk_block, chunk_at],
        )
        chunk = logits[rows]
        process_logits(chunk, chunk_inputs, logits_ops)
        logits[rows] = chunk


def _padded(values: np.ndarray, size: int) -> np.ndarray:
    """Repeats the last value, which has the same effect as once. Without values, pads with 0, which has no effect."""
    return np.pad(values, (0, size - len(values)), mode="edge" if len(values) else "constant")
