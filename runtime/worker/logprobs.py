"""Computes logprobs by running lm_head again for newly unmasked positions, so that sampling is unaffected."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch

from runtime.algorithms.logits_ops import topk
from runtime.scheduling.step_plan import MASKED, NO_LOGPROBS, UNMASKED, BlockLogprobs, BlockResults, DenoiseBlocks
from runtime.worker.candidates import FullLogits


@torch.inference_mode()
def compute_logprobs(full_logits: FullLogits, blocks: DenoiseBlocks, results: BlockResults) -> None:
    """Writes ``results.logprobs`` of all positions that the step unmasked or changed, for requests with logprobs.

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
        return
    num_top = int(blocks.num_logprobs[block].max())
    rows, tokens = blocks.rows[block] + at, results.tokens[block, at]
    parts = [
        _logprobs_of(full_logits.rows(rows[start:end]), tokens[start:end], num_top)
        for start, end in _chunks(block, full_logits)
    ]
    values, ids, tops = (np.concatenate(each) for each in zip(*parts, strict=True))
    for i in np.unique(block).tolist():
        mine = block == i
        results.logprobs[i] = BlockLogprobs(at[mine], values[mine], ids[mine], tops[mine])


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


def _logprobs_of(logits: torch.Tensor, tokens: np.ndarray, num_top: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the logprobs of `tokens` [n] under `logits` [n, vocab], and those of the top tokens.

    Returns:
        Logprobs [n], top ids [n, num_top], top logprobs [n, num_top].
    """
    total = logits.logsumexp(1, keepdim=True)
    own = logits.gather(1, torch.from_numpy(tokens).to(logits.device)[:, None])
    ids, values = own.long()[:, :0], own[:, :0]
    if num_top:
        ids, values = topk(logits, num_top)
    found = torch.cat([torch.cat([own, values], 1) - total, ids.to(total.dtype)], 1).double().cpu().numpy()
    return found[:, 0], found[:, 1 + num_top :].astype(np.int64), found[:, 1 : 1 + num_top]
