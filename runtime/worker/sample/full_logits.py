"""Computes full logits of selected rows for decisions on the host: constrained decoding and logprobs.

Under tensor parallelism each rank computes the logits of its vocabulary shard. The selected rows are known only after
the step, and the other ranks only have the plan. So the driver rank sends them the rows first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from runtime.worker.sample.sampler import LOGITS_CHUNK_ROWS, Sampler

GATHERED_ROWS = 256  # rows gathered per chunk: a vocabulary of 157k in float32 takes 0.16 GB, briefly three times


@dataclass(frozen=True)
class FullLogits:
    """Computes logits from the hidden states of a step.

    Args:
        final_norm: ``Model.final_hidden_states``.
        hidden_states: [rows, hidden] of the step, as ``Model.forward`` returns them.
        notify_ranks: called with the rows before each computation, so that other ranks do the same. None: no others.
        batch_invariant: compute rows of each request separately, as GEMM results may depend on the number of rows.
    """

    sampler: Sampler
    final_norm: Callable[[torch.Tensor], torch.Tensor]
    hidden_states: torch.Tensor
    notify_ranks: Callable[[np.ndarray], None] | None = None
    batch_invariant: bool = False

    @property
    def vocab_parallel(self) -> bool:
        """Whether the vocabulary is sharded over ranks."""
        return self.sampler.logits_ops.is_sharded

    @property
    def max_rows(self) -> int:
        """Maximum number of rows per call."""
        return GATHERED_ROWS if self.vocab_parallel else LOGITS_CHUNK_ROWS

    def rows(self, rows: np.ndarray) -> torch.Tensor:
        """Returns logits [n, vocab] of `rows` [n], at most `max_rows`: forbidden ids are -inf, all else unchanged."""
        if self.notify_ranks is not None:
            self.notify_ranks(rows)
        index = torch.from_numpy(rows).to(self.hidden_states.device)
        return self.sampler.full_logits(self.final_norm(self.hidden_states[index]))
