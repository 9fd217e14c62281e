"""Groups the sampled rows of a step by unmasking algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from runtime.algorithms import sampling
from runtime.algorithms.base import TOKEN_MERGE_TOP_K, LogitStat, SampledRows, UnmaskingAlgorithm
from runtime.algorithms.logits_ops import LogitsOps
from runtime.worker.input_batch import AlgorithmShape

RowIndex = tuple[torch.Tensor, torch.Tensor]  # int64 [rows] each: block of a row, and its offset in the block
Tensors = Mapping[str, torch.Tensor]  # the arrays of ``worker.input_batch`` on the device


@dataclass(frozen=True)
class RowSpan:
    """Consecutive rows of a group: as a slice of all sampled rows, and as a slice of the current chunk of them."""

    rows: slice
    part: slice


@dataclass(frozen=True)
class AlgorithmGroup:
    """The blocks of a step that use one unmasking algorithm.

    Attributes:
        first: first sampled row of the group; its rows are ``[first, first + shape.rows)``.
        members: int64 [m], indices of the group's blocks in the plan. None: all blocks.
        block_in_group: int64 [sampled rows], index of each row's block within its group.
        params: float64 [m, columns], parameters of the algorithm for each block.
        history: [m, B, records, fields], values that the algorithm recorded in earlier steps.
        top_k: [m, B, k], output buffer for the most probable tokens.
    """

    algorithm: UnmaskingAlgorithm
    shape: AlgorithmShape
    first: int
    members: torch.Tensor | None
    block_in_group: torch.Tensor
    params: torch.Tensor
    history: torch.Tensor | None
    top_k: sampling.TopTokens | None
    logits_ops: LogitsOps

    @property
    def required_stats(self) -> LogitStat:
        return LogitStat(self.shape.required_stats)

    def rows_in(self, part: slice, max_rows: int | None = None) -> RowSpan | None:
        """Returns the group's rows within the chunk `part` of the sampled rows; None if there are none.

        Args:
            max_rows: consider only this many rows at the end of the group.
        """
        end = self.first + self.shape.rows
        begin = self.first if max_rows is None else end - max_rows
        begin, end = max(begin, part.start), min(end, part.stop)
        return RowSpan(slice(begin, end), slice(begin - part.start, end - part.start)) if begin < end else None

    def write_token_prob(self, logits: torch.Tensor, index: RowIndex, tokens: torch.Tensor, out: torch.Tensor) -> None:
        """Writes the probability of the current token at the positions `index` into `out` [n, B]."""
        last = self.logits_ops.vocab_size(logits) - 1
        out[index] = self.logits_ops.probability(logits, tokens[index].clamp(max=last))

    def view(
        self, own: RowIndex, tokens: torch.Tensor, masked: torch.Tensor, num_steps: torch.Tensor, *, graph_safe: bool
    ) -> SampledRows:
        """Returns rows of the group as input of `process_logits`; `own` indexes blocks within the group."""
        if self.members is not None:
            tokens, masked, num_steps = tokens[self.members], masked[self.members], num_steps[self.members]
        block, at = own
        params, columns = self.params[block], self.algorithm.columns
        return SampledRows(
            tokens, masked, block, at, num_steps[block], params, columns, self.history, graph_safe, self.logits_ops
        )  # fmt: skip

    def write_top_k(self, logits: torch.Tensor, own: RowIndex) -> None:
        """Writes the most probable tokens at the positions `own` into `top_k`, up to the number that each request
        mixes; the probability of the others is 0."""
        assert self.top_k is not None
        block, at = own
        found = self.logits_ops.top_tokens(logits, self.top_k.ids.shape[2])
        count = self.params[block, self.algorithm.columns[TOKEN_MERGE_TOP_K.name]]
        beyond = torch.arange(self.top_k.ids.shape[2], device=block.device) >= count[:, None]
        self.top_k.ids[block, at], self.top_k.probs[block, at] = found.ids, found.probs.masked_fill(beyond, 0)


def make_groups(
    algorithms: list[UnmaskingAlgorithm], shapes: tuple[AlgorithmShape, ...], inputs: Tensors, size: int,
    dtype: torch.dtype, logits_ops: LogitsOps,
) -> list[AlgorithmGroup]:  # fmt: skip
    """Makes the groups of a step.

    Args:
        shapes: one descriptor per algorithm, in the order of the sampled rows.
        size: positions per block.
        dtype: float dtype of the probabilities.
    """
    groups = []
    first = 0
    for i, (rule, shape) in enumerate(zip(algorithms, shapes, strict=True)):
        params, top = inputs[f"params{i}"], None
        if shape.top_k:
            ids = params.new_zeros((shape.blocks, size, shape.top_k), dtype=torch.int64)
            top = sampling.TopTokens(ids, torch.zeros_like(ids, dtype=dtype))
        members, own = (
            (None, inputs["block"]) if len(shapes) == 1 else (inputs[f"members{i}"], inputs["block_in_group"])
        )
        # a copy, because the algorithm updates it and the input buffer must not change
        history = inputs[f"history{i}"].clone() if shape.history_len else None
        groups.append(AlgorithmGroup(rule, shape, first, members, own, params, history, top, logits_ops))
        first += shape.rows
    return groups
