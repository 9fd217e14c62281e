"""The distributions that candidates are drawn from, computed again for requests that read them.

``CandidateSampler`` draws from the same: logits processors, changes of the algorithms, grammar, then temperature and
filters (docs/research/decoding-rules.md#logits).
"""

from __future__ import annotations

import numpy as np
import torch

from runtime.algorithms.base import SUPPRESS_EOS, TEMPERATURE, LogitStat, SampledRows
from runtime.algorithms.logits_ops import DEFAULT_LOGITS_OPS
from runtime.kernels.bitmask_argmax import mask_logits
from runtime.scheduling.step_plan import MASKED, NUM_STEPS, AlgorithmBatch, BlockResults, DenoiseBlocks
from runtime.worker.logits_processors import apply_to_rows


def processed_logprobs(
    logits: torch.Tensor, blocks: DenoiseBlocks, results: BlockResults, block: np.ndarray, at: np.ndarray,
    eos_ids: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Returns the logprobs of all tokens, [rows, vocab]. `logits` may change.

    Args:
        logits: [rows, vocab], with -inf for forbidden ids.
        blocks: the blocks before the step.
        block, at: int64 [rows], block and offset of each row.
        eos_ids: int64 [ids].
    """
    if blocks.logits_processors is not None:
        apply_to_rows(logits, blocks.logits_processors, block, at)
    for group in blocks.groups:
        mine = np.flatnonzero(np.isin(block, group.members))
        if len(mine):
            rows = torch.from_numpy(mine).to(logits.device)
            own = logits[rows]
            _apply_algorithm(own, blocks, group, block[mine], at[mine], eos_ids)
            logits[rows] = own
    _mask_by_grammar(logits, results, block, at)
    logprobs = logits.log_softmax(1)
    if blocks.sampling_params is not None:
        params = blocks.sampling_params[block]
        random = np.flatnonzero(params[:, TEMPERATURE] > 0)
        if len(random):
            rows, own_params = (torch.from_numpy(each).to(logits.device) for each in (random, params[random]))
            logprobs[rows] = DEFAULT_LOGITS_OPS.filtered_probs(logits[rows], own_params).log()
    return logprobs


def _on(logits: torch.Tensor, *arrays: np.ndarray) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(array).to(logits.device) for array in arrays)


def _apply_algorithm(
    logits: torch.Tensor, blocks: DenoiseBlocks, group: AlgorithmBatch, block: np.ndarray, at: np.ndarray,
    eos_ids: torch.Tensor,
) -> None:  # fmt: skip
    """Changes the logits of rows of a group in place as the sampler did."""
    stats, algorithm, members = LogitStat(group.required_stats), group.algorithm, group.members
    order = np.argsort(members)
    in_group, offset = _on(logits, order[np.searchsorted(members, block, sorter=order)], at)
    params = torch.from_numpy(group.params).to(logits.device)[in_group]
    if stats & LogitStat.SUPPRESS_EOS:
        suppressed = params[:, algorithm.columns[SUPPRESS_EOS.name]] == SUPPRESS_EOS.choices.index("logits")
        logits[:, eos_ids] = logits[:, eos_ids].masked_fill(suppressed[:, None], float("-inf"))
    if stats & LogitStat.PROCESS_LOGITS:
        assert blocks.tokens is not None
        steps = blocks.numbers[members, NUM_STEPS]
        tokens, masked, num_steps = _on(logits, blocks.tokens[members], blocks.state[members] == MASKED, steps)
        history = None if group.history is None else torch.from_numpy(group.history.copy()).to(logits.device)
        rows = SampledRows(
            tokens, masked, in_group, offset, num_steps[in_group], params, algorithm.columns, history,
        )  # fmt: skip
        algorithm.process_logits(logits, rows)


def _mask_by_grammar(logits: torch.Tensor, results: BlockResults, block: np.ndarray, at: np.ndarray) -> None:
    """Sets the logits of tokens that a grammar did not allow to -inf in place."""
    for row, where in enumerate(zip(block.tolist(), at.tolist(), strict=True)):
        if where not in results.allowed:
            continue
        bitmask = results.allowed[where]
        if bitmask is None:
            token = int(results.tokens[where])
            logits[row] = float("-inf")
            logits[row, token] = 0.0
        else:
            index, words = _on(logits, np.array([row]), bitmask[None])
            logits[row] = mask_logits(logits, index, words)[0]
