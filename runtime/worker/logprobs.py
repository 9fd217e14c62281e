"""Computes logprobs by running lm_head again for newly unmasked positions and for reads; sampling is unaffected."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import torch

from runtime.algorithms.logits_ops import topk
from runtime.scheduling.step_plan import MASKED, NO_LOGPROBS, UNMASKED, BlockLogprobs, BlockResults, DenoiseBlocks
from runtime.worker.candidates import FullLogits


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
def compute_logprobs(full_logits: FullLogits, blocks: DenoiseBlocks, results: BlockResults) -> StepLogprobs | None:
    """Returns logprobs of all positions that the step unmasked or changed, for requests with logprobs.

    They are logprobs of the model's distribution without forbidden ids. Logits processors, temperature and algorithms
    do not change them.
    """
    assert blocks.num_logprobs is not None
    assert blocks.tokens is not None
    requested = np.flatnonzero(blocks.num_logprobs > NO_LOGPROBS)
    size = blocks.state.shape[1]  # a captured step may have larger blocks
    before, after = blocks.state[requested], results.state[requested, :size]
    updated = (after == UNMASKED) & (
        (before == MASKED) | (blocks.tokens[requested] != results.tokens[requested, :size])
    )
    which, at = np.nonzero(updated)
    block = requested[which]
    if not len(block):
        return None
    num_top = int(blocks.num_logprobs[block].max())
    rows, tokens = blocks.rows[block] + at, results.tokens[block, at]
    parts = [
        _logprobs_of(full_logits.rows(rows[start:end]), tokens[start:end], num_top)
        for start, end in _chunks(block, full_logits)
    ]
    return StepLogprobs(block, at, parts)


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
