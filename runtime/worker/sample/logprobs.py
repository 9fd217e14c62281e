"""Log-probabilities of what a step wrote, of requests that ask for them: logits of these positions are made once more,
of the same hidden states, so that the step itself is what it is without."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from runtime.algorithms import sampling
from runtime.engine.logprobs_request import BlockLogprobs
from runtime.engine.request import MASKED, UNMASKED, Request
from runtime.engine.step_plan import BlockResults, DenoiseBlocks
from runtime.worker.sample.full_logits import FullLogits

NONE = -1  # of a block whose request does not ask


def asked(owners: Sequence[Request]) -> np.ndarray | None:
    """int64 [n]: of how many of the likeliest tokens each block's request wants to know; None where none asks."""
    if not any(request.logprobs is not None for request in owners):
        return None
    return np.array(
        [NONE if request.logprobs is None else request.logprobs.num_top for request in owners], dtype=np.int64
    )


@torch.inference_mode()
def tell(looking: FullLogits, plan: DenoiseBlocks, results: BlockResults) -> None:
    """Into ``results.logprobs``, of the blocks that ask: of the model's own distribution (what may never be predicted
    apart), before a bias, a penalty, a temperature or a rule has changed anything."""
    assert plan.num_logprobs is not None
    asking = np.flatnonzero(plan.num_logprobs > NONE)
    size = plan.state.shape[1]  # recorded steps may be of larger blocks
    before, after = plan.state[asking], results.state[asking, :size]
    written = (after == UNMASKED) & ((before == MASKED) | (plan.tokens[asking] != results.tokens[asking, :size]))
    which, at = np.nonzero(written)
    block = asking[which]
    if not len(block):
        return
    most = int(plan.num_logprobs[block].max())
    rows, tokens = plan.rows[block] + at, results.tokens[block, at]
    parts = [
        _described(looking.rows(rows[start:end]), tokens[start:end], most) for start, end in _spans(block, looking)
    ]
    values, ids, tops = (np.concatenate(each) for each in zip(*parts, strict=True))
    for i in np.unique(block).tolist():
        mine = block == i
        results.logprobs[i] = BlockLogprobs(at[mine], values[mine], ids[mine], tops[mine])


def _spans(block: np.ndarray, looking: FullLogits) -> Iterator[tuple[int, int]]:
    """Of rows of `block` [n], in its order, those that are looked at in one."""
    if looking.batch_invariant:
        edges = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(block)]
    else:
        edges = [*range(0, len(block), looking.max_rows), len(block)]
    return itertools.pairwise(edges)


def _described(logits: torch.Tensor, tokens: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log-probabilities of `tokens` [n] under `logits` [n, vocab], and of the `most` likeliest: their ids [n, most] and
    values."""
    total = logits.logsumexp(1, keepdim=True)
    own = logits.gather(1, torch.from_numpy(tokens).to(logits.device)[:, None])
    ids, values = own.long()[:, :0], own[:, :0]
    if most:
        ids, values = sampling.topk(logits, most)
    told = torch.cat([torch.cat([own, values], 1) - total, ids.to(total.dtype)], 1).double().cpu().numpy()
    return told[:, 0], told[:, 1 + most :].astype(np.int64), told[:, 1 : 1 + most]
