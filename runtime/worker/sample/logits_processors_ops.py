"""Device operations of logits processors (docs/guide/decoding.md#logits-processors)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runtime.algorithms.logits_ops import LogitsOps


@dataclass(frozen=True)
class LogitsProcessorInputs:
    """Inputs for some rows of logits. A row of `ids` may repeat an id with the same values.

    Attributes:
        ids: int64 [rows, n].
        repetition_counts: int64 [rows, n], occurrences in the prompt and the output.
        output_counts: int64 [rows, n], occurrences in the output.
        bias: float64 [rows, n].
        min_tokens: int64 [rows, n], the id is forbidden at output positions below this one.
        penalties: float64 [rows, 3], repetition, presence and frequency.
        position: int64 [rows], position in the output.
        current_token: int64 [rows], the token at the row's own position if it is counted; -1 otherwise.
    """

    ids: torch.Tensor
    repetition_counts: torch.Tensor
    output_counts: torch.Tensor
    bias: torch.Tensor
    min_tokens: torch.Tensor
    penalties: torch.Tensor
    position: torch.Tensor
    current_token: torch.Tensor


def process_logits(logits: torch.Tensor, inputs: LogitsProcessorInputs, logits_ops: LogitsOps) -> None:
    """Changes `logits` [rows, vocab] in place: adds the bias, then applies the repetition penalty, then the others.

    The token at a row's own position does not count for the penalties of that row.
    """
    dtype = logits.dtype
    repetition, presence, frequency = (column[:, None].to(dtype) for column in inputs.penalties.unbind(1))
    own = (inputs.ids == inputs.current_token[:, None]).long()
    counts = (inputs.output_counts - own).clamp(min=0)
    values = logits_ops.gather(logits, inputs.ids) + inputs.bias.to(dtype)
    repeated = torch.where(values > 0, values / repetition, values * repetition)
    values = torch.where(inputs.repetition_counts > own, repeated, values)
    values = values - frequency * counts.to(dtype) - presence * (counts > 0).to(dtype)
    values = values.masked_fill(inputs.position[:, None] < inputs.min_tokens, float("-inf"))
    logits_ops.scatter(logits, inputs.ids, values)
