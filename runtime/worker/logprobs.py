"""Computes logprobs by running lm_head again for newly unmasked positions and for reads; sampling is unaffected."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import torch

from runtime.algorithms.logits_ops import topk
from runtime.scheduling.step_plan import (
    MASKED,
    NO_LOGPROBS,
    UNMASKED,
    BlockLogprobs,
    BlockResults,
    DenoiseBlocks,
    LogprobsOf,
)
from runtime.worker.candidates import FullLogits
from runtime.worker.processed_logits import processed_logprobs


class StepLogprobs:
    """Logprobs of a step on their way to the host. The device may compute them behind the next forward.

    Args:
        block, at: int64 [n], block and offset of each position.
        parts: see `_logprobs_of`, of consecutive positions.
    """

    def __init__(self, block: np.ndarray, at: np.ndarray, parts: list[torch.Tensor]) -> None:
        self._block, self._at = block, at
        found = torch.cat(parts)
        self._done: torch.cuda.Event | None = None
        self._found = found
        if found.device.type == "cuda":
            self._found = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
            self._found.copy_(found, non_blocking=True)
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record()

    def of(self, i: int) -> BlockLogprobs | None:
        """Returns the logprobs of block `i`, once the device has computed them. None: the step changed none of it."""
        mine = self._block == i
        if not mine.any():
            return None
        if self._done is not None:
            self._done.synchronize()
        values = self._found.numpy()[mine]
        num_top = values.shape[1] // 2
        return BlockLogprobs(
            self._at[mine], values[:, 0], values[:, 1 + num_top :].astype(np.int64), values[:, 1 : 1 + num_top]
        )


@torch.inference_mode()
def compute_logprobs(
    full_logits: FullLogits, blocks: DenoiseBlocks, results: BlockResults
) -> tuple[LogprobsOf | None, LogprobsOf | None]:
    """Returns logprobs of the positions that the step unmasked or changed, and of candidates where it left a mask.

    Logprobs are those of the model's distribution without forbidden ids, or as requested of the distribution that
    candidates are drawn from. Those of candidates are always of the latter.
    """
    assert blocks.tokens is not None
    size = blocks.state.shape[1]  # a captured step may have larger blocks
    tokens, after = results.tokens[:, :size], results.state[:, :size]
    logprobs = candidates = None
    if blocks.num_logprobs is not None:
        updated = (after == UNMASKED) & ((blocks.state == MASKED) | (blocks.tokens != tokens))
        updated[blocks.num_logprobs == NO_LOGPROBS] = False
        processed = np.zeros(len(after), np.bool_) if blocks.processed_logprobs is None else blocks.processed_logprobs
        logprobs = _compute(full_logits, blocks, results, updated, blocks.num_logprobs, processed)
    if blocks.num_candidates is not None:
        masked = (after == MASKED) & (blocks.num_candidates > 0)[:, None]
        masked[[each.block for each in blocks.grammar_blocks]] = False  # the grammar does not know these positions yet
        processed = np.ones(len(after), np.bool_)
        candidates = _compute(full_logits, blocks, results, masked, blocks.num_candidates, processed)
    return logprobs, candidates


def _compute(
    full_logits: FullLogits, blocks: DenoiseBlocks, results: BlockResults, positions: np.ndarray, num_top: np.ndarray,
    processed: np.ndarray,
) -> LogprobsOf | None:  # fmt: skip
    """Returns the logprobs of the tokens at `positions`, and of the most probable tokens there; None if there are none.

    Args:
        positions: bool [n, B].
        num_top: int64 [n], number of most probable tokens.
        processed: bool [n], the logprobs are those of the distribution that candidates are drawn from.
    """
    block, at = np.nonzero(positions)
    if not len(block):
        return None
    rows, tokens, count, parts = blocks.rows[block] + at, results.tokens[block, at], int(num_top[block].max()), []
    for start, end in _chunks(block, full_logits):
        logits, here = full_logits.rows(rows[start:end]), slice(start, end)
        changed = np.flatnonzero(processed[block[here]])
        if len(changed):
            index = torch.from_numpy(changed).to(logits.device)
            where = block[here][changed], at[here][changed]
            eos_ids = full_logits.candidates.eos_ids
            logits[index] = processed_logprobs(logits[index], blocks, results, *where, eos_ids)
        parts.append(_logprobs_of(logits, tokens[here], count))
    return StepLogprobs(block, at, parts).of


@torch.inference_mode()
def compute_reads(full_logits: FullLogits, blocks: DenoiseBlocks) -> dict[int, np.ndarray]:
    """Returns `BlockResults.reads`. Edit tokens of the model have no probability in a read."""
    counts = [len(read.offsets) for read in blocks.reads]
    block = np.array([read.block for read in blocks.reads]).repeat(counts)
    rows = blocks.rows[block] + np.concatenate([read.offsets for read in blocks.reads])
    width = max(len(read.ids) for read in blocks.reads)
    ids = np.zeros((len(blocks.reads), width), dtype=np.int64)  # padded with any id
    for row, read in zip(ids, blocks.reads, strict=True):
        row[: len(read.ids)] = read.ids
    ids = ids.repeat(counts, axis=0)
    parts = []
    for start, end in _chunks(block, full_logits):
        logits = full_logits.rows(rows[start:end])
        logits[:, full_logits.candidates.edit_ids] = -math.inf
        wanted = torch.from_numpy(ids[start:end]).to(logits.device)
        values = torch.cat([logits.gather(1, wanted), logits.amax(1, keepdim=True)], 1)
        parts.append((values - logits.logsumexp(1, keepdim=True)).double())
    found = np.split(torch.cat(parts).cpu().numpy(), np.cumsum(counts)[:-1])
    columns = [[*range(len(read.ids)), width] for read in blocks.reads]
    return {read.block: each[:, own] for read, each, own in zip(blocks.reads, found, columns, strict=True)}


def _chunks(block: np.ndarray, full_logits: FullLogits) -> Iterator[tuple[int, int]]:
    """Yields the ranges of rows whose logits are computed together.

    Args:
        block: int64 [n], block of each row, in order.
    """
    if full_logits.batch_invariant:
        edges = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(block)]
    else:
        edges = [*range(0, len(block), full_logits.max_rows), len(block)]
    return itertools.pairwise(edges)


def _logprobs_of(logits: torch.Tensor, tokens: np.ndarray, num_top: int) -> torch.Tensor:
    """Returns the logprobs of `tokens` [n] under `logits` [n, vocab], then those of the top tokens, then their ids.

    Returns:
        float64 [n, 1 + 2 * num_top].
    """
    total = logits.logsumexp(1, keepdim=True)
    own = logits.gather(1, torch.from_numpy(tokens).to(logits.device, non_blocking=True)[:, None])
    ids, values = own.long()[:, :0], own[:, :0]
    if num_top:
        ids, values = topk(logits, num_top)
    return torch.cat([(torch.cat([own, values], 1) - total).double(), ids.double()], 1)
