"""Distributed top-k and top-p thresholds, found by bisection on counts instead of a sort of the full vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import torch

_INT_DTYPES = {torch.float32: torch.int32, torch.float64: torch.int64}
DIGIT = 8  # bits of a key that one iteration determines


def sortable_keys(numbers: torch.Tensor) -> torch.Tensor:
    """Returns integers that have the same order as the numbers, int64. Keys of float32 have 32 bits. NaN is invalid."""
    bits = (numbers + 0.0).view(_INT_DTYPES[numbers.dtype])  # -0.0 becomes 0.0
    return torch.where(bits < 0, bits ^ torch.iinfo(bits.dtype).max, bits).long()


class DistributedQuantile:
    """The sorted keys of this rank's columns.

    Args:
        keys: int64 [rows, n], see `sortable_keys`.
        bits: number of bits of a key.
    """

    def __init__(self, keys: torch.Tensor, bits: int) -> None:
        self.keys = keys
        self.bits = bits
        self._ascending, self._order = keys.sort(dim=1)

    def count_above(self, key: torch.Tensor) -> torch.Tensor:
        """Returns the number of larger keys of this rank for each of `key` [rows, m], int64 [rows, m]."""
        return self.keys.shape[1] - torch.searchsorted(self._ascending, key, right=True)

    def mass_above(self, probs: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        """Returns a function from keys [rows, m] to the summed probability of this rank's larger keys, float64.

        Args:
            probs: [rows, n], probabilities of the columns.
        """
        falling = probs.gather(1, self._order).flip(1).cumsum(1, dtype=torch.float64)
        sums = torch.nn.functional.pad(falling, (1, 0))
        return lambda key: sums.gather(1, self.count_above(key))

    def smallest_key_where(self, holds: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Returns the smallest key for which `holds` is true, [rows, 1].

        Args:
            holds: maps keys [rows, m] to bools. If it is true for a key, it is true for all larger keys; it is true
                for the largest key. The number of calls does not depend on the keys.
        """
        found = self.keys.new_full((len(self.keys), 1), -(2 ** (self.bits - 1)))
        digits = torch.arange(1, 2**DIGIT, device=found.device)
        for shift in range(self.bits - DIGIT, -1, -DIGIT):
            last = found + (digits << shift) - 1  # the largest key with each value of this digit, except the last value
            found = found + ((~holds(last)).sum(1, keepdim=True) << shift)
        return found
