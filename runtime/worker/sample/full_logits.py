"""Whole logits of some of a step's rows, for what the host decides: walks through grammars, and log-probabilities.

Of a model that several processes share, each has the logits of its own share of the vocabulary. The others follow a
plan, and which rows are looked at is known only when the plan has been done; so the leading one tells them first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from runtime.worker.sample.sampler import HEAD_ROWS, Head

GATHERED_ROWS = 256  # of all shares at a time: a vocabulary of 157k in float32 is 0.16 GB, for a moment three times


@dataclass(frozen=True)
class Looking:
    """
    Args:
        finish, left: see ``Model``; [rows, hidden] of the step.
        others: hears of rows before they are looked at here; None where nobody else has to do the same.
        apart: rows of several requests are not to be looked at in one: how many rows there are may change bits.
    """

    head: Head
    finish: Callable[[torch.Tensor], torch.Tensor]
    left: torch.Tensor
    others: Callable[[np.ndarray], None] | None = None
    apart: bool = False

    @property
    def shared(self) -> bool:
        """Whether each of several processes has a part of the vocabulary."""
        return self.head.vocabulary.shared

    @property
    def most(self) -> int:
        """Rows at a time."""
        return GATHERED_ROWS if self.shared else HEAD_ROWS

    def at(self, rows: np.ndarray) -> torch.Tensor:
        """[n, vocab] of rows [n], at most `most`: what may not be predicted is -inf, nothing else is changed."""
        if self.others is not None:
            self.others(rows)
        return self.head.raw(self.finish(self.left[torch.from_numpy(rows).to(self.left.device)]))
