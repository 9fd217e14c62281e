"""A vocabulary that is asked through `torch.compile`: what takes several passes over logits is one kernel or two."""

from __future__ import annotations

from collections.abc import Callable

import torch

from runtime.algorithms import sampling
from runtime.algorithms.logits_ops import Vocabulary
from runtime.algorithms.sampling import Candidate
from runtime.errors import ConfigError


class CompiledVocabulary(Vocabulary):
    """All of it is here. Results are those of `Vocabulary`, but for how sums are rounded.

    The likeliest token with its probability, and the entropy: draws and margins, whose time goes into running sums,
    sorts and `topk`, are no quicker compiled.

    Args:
        mode: of `torch.compile`, one that records no CUDA graphs of its own.
        device, dtype: of logits, of so many `ids`. For these, and any number of rows, all is compiled here.

    Raises:
        ConfigError: nothing can be compiled here.
    """

    def __init__(self, mode: str, device: torch.device, dtype: torch.dtype, ids: int) -> None:
        self._greedy: Callable[[torch.Tensor], Candidate] = torch.compile(sampling.greedy, mode=mode, dynamic=True)
        self._entropy_of = torch.compile(super().entropy_of, mode=mode, dynamic=True)
        try:
            with torch.inference_mode():
                for rows in (1, 2):  # a single one is compiled apart
                    some = torch.zeros(rows, ids, dtype=dtype, device=device)
                    self.greedy(some)
                    self.entropy_of(some)
        except Exception as error:  # of many kinds: there may be no compiler, or one that fails
            told = str(error).split("\n\n")[0]  # then comes how to debug torch.compile
            reason = " ".join(told.split())[:300] or type(error).__name__
            raise ConfigError(
                f"--torch-compile-mode {mode}: torch.compile does not work here ({reason}); leave it out"
            ) from error

    def greedy(self, logits: torch.Tensor) -> Candidate:
        return self._greedy(logits)

    def entropy_of(self, logits: torch.Tensor) -> torch.Tensor:
        return self._entropy_of(logits)
