"""Samples for uniform-noise models with one fused kernel over the logits: token, confidence, entropy and argmax."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from runtime.algorithms.base import LogitStat, SampledRows
from runtime.kernels.fused_softmax_stats import SoftmaxStats, StatsRequest
from runtime.layers.lm_head import SoftcapLMHead
from runtime.worker.input_batch import SampleDescriptor
from runtime.worker.sample.algorithm_groups import AlgorithmGroup, RowIndex, Tensors

REQUIRED = LogitStat.PROCESS_LOGITS | LogitStat.ENTROPY
SUPPORTED = REQUIRED | LogitStat.ARGMAX | LogitStat.SELF_CONDITIONING


def only_renoise(shape: SampleDescriptor, groups: list[AlgorithmGroup]) -> bool:
    """Whether all blocks use one uniform-noise algorithm that requires only what the fused kernel computes."""
    (group, *others) = groups
    required = group.required_stats
    fits = group.algorithm.uniform_noise and required & REQUIRED == REQUIRED and not required & ~SUPPORTED
    return fits and not others and not group.shape.num_filtered and shape.rows > 0


def fused_renoise_stats(
    head: SoftcapLMHead,
    group: AlgorithmGroup,
    hidden: torch.Tensor,
    inputs: Tensors,
    block_state: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    *,
    max_rows: int,
    mask_id: int | None,
    max_token_id: int,
    returns_probs: bool,
    graph_safe: bool,
) -> Iterator[tuple[RowIndex, SoftmaxStats]]:
    """Yields the positions and the kernel's results of each chunk of sampled rows.

    Args:
        hidden: [rows, hidden] of all sampled rows.
        block_state: tokens [n, B], masked positions [n, B] and number of steps [n] of all blocks.
        max_rows: rows per chunk.
        returns_probs: return the probabilities too, for self-conditioning.
        graph_safe: see ``Sampler.sample``.
    """
    assert head.kernels.softmax_stats is not None
    block, at = inputs["block"], inputs["at"]
    uniform = None
    if group.shape.num_sampled:  # the last rows
        uniform = torch.full((len(hidden),), -1.0, dtype=torch.float64, device=hidden.device)
        uniform[len(hidden) - group.shape.num_sampled :] = inputs["uniform"]
    for start in range(0, len(hidden), max_rows):
        part = slice(start, start + max_rows)
        rows: SampledRows = group.view((group.block_in_group[part], at[part]), *block_state, graph_safe=graph_safe)
        request = StatsRequest(
            temperature=group.algorithm.temperature(rows), uniform=None if uniform is None else uniform[part],
            cap=head.cap,
            mask_id=mask_id, max_token_id=max_token_id, probs=hidden.dtype if returns_probs else None,
        )  # fmt: skip
        yield (block[part], at[part]), head.kernels.softmax_stats(head.uncapped(hidden[part]), request)
