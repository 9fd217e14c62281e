"""The order of a row's numbers, of which processes have a share each: found together by counts, not by sorting all."""

from __future__ import annotations

from collections.abc import Callable

import torch

_WHOLE_NUMBERS = {torch.float32: torch.int32, torch.float64: torch.int64}
DIGIT = 8  # bits of a key that are found at a time


def keys(numbers: torch.Tensor) -> torch.Tensor:
    """int64: whole numbers in the same order, equal for equals; those of float32 have 32 bits. No NaN."""
    bits = (numbers + 0.0).view(_WHOLE_NUMBERS[numbers.dtype])  # -0.0 is 0.0
    return torch.where(bits < 0, bits ^ torch.iinfo(bits.dtype).max, bits).long()


class Ordered:
    """This process's share of some rows' keys, int64 [rows, n] of `bits` bits."""

    def __init__(self, keys: torch.Tensor, bits: int) -> None:
        self.keys = keys
        self.bits = bits
        self._rising, self._places = keys.sort(dim=1)

    def above(self, key: torch.Tensor) -> torch.Tensor:
        """int64 like `key` [rows, m]: how many are larger."""
        return self.keys.shape[1] - torch.searchsorted(self._rising, key, right=True)

    def mass(self, probs: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        """What says of keys [rows, m] the sum of the probabilities [rows, n] of the larger ones, float64."""
        falling = probs.gather(1, self._places).flip(1).cumsum(1, dtype=torch.float64)
        sums = torch.nn.functional.pad(falling, (1, 0))
        return lambda key: sums.gather(1, self.above(key))

    def smallest_that(self, holds: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """[rows, 1]: the smallest key that `holds`, which of keys [rows, m] does for all above one that it does for,
        and for the largest. It is asked as often whatever the keys."""
        found = self.keys.new_full((len(self.keys), 1), -(2 ** (self.bits - 1)))
        digits = torch.arange(1, 2**DIGIT, device=found.device)
        for shift in range(self.bits - DIGIT, -1, -DIGIT):
            last = found + (digits << shift) - 1  # of each run of keys that have a digit alike, but for the last run
            found = found + ((~holds(last)).sum(1, keepdim=True) << shift)
        return found
