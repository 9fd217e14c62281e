"""Operations on logits compiled with `torch.compile`, which fuses their passes over the vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import torch

from runtime.algorithms import sampling
from runtime.algorithms.sampling import Candidate, LogitsOps
from runtime.errors import ConfigError


class CompiledLogitsOps(LogitsOps):
    """`LogitsOps` with a compiled argmax and entropy. Sums may be rounded differently.

    Sampling and margins are not compiled: cumulative sums, sorts and `topk` do not become faster.

    Args:
        mode: mode of `torch.compile` that captures no CUDA graphs of its own.
        device: device of the logits.
        dtype: dtype of the logits.
        ids: size of the vocabulary. The constructor compiles for this size and any number of rows.

    Raises:
        ConfigError: `torch.compile` does not work on this machine.
    """

    def __init__(self, mode: str, device: torch.device, dtype: torch.dtype, ids: int) -> None:
        self._greedy: Callable[[torch.Tensor], Candidate] = torch.compile(sampling.greedy, mode=mode, dynamic=True)
        self._entropy_from_logits = torch.compile(super().entropy_from_logits, mode=mode, dynamic=True)
        try:
            with torch.inference_mode():
                for rows in (1, 2):  # one row is compiled separately
                    logits = torch.zeros(rows, ids, dtype=dtype, device=device)
                    self.greedy(logits)
                    self.entropy_from_logits(logits)
        except Exception as error:  # of many types: the compiler may be missing or fail
            message = str(error).split("\n\n")[0]  # hints for debugging torch.compile follow
            reason = " ".join(message.split())[:300] or type(error).__name__
            raise ConfigError(
                f"--torch-compile-mode {mode}: torch.compile does not work here ({reason}); leave it out"
            ) from error

    def greedy(self, logits: torch.Tensor) -> Candidate:
        return self._greedy(logits)

    def entropy_from_logits(self, logits: torch.Tensor) -> torch.Tensor:
        return self._entropy_from_logits(logits)
