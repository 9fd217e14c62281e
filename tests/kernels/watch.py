"""Records loads and stores of kernels in Triton's interpreter."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from triton.runtime import interpreter


@dataclass
class Watched:
    """The accesses of kernels."""

    loads: list[npt.NDArray[np.int64]] = field(default_factory=list)  # addresses of unmasked elements, of each load
    widest: int = 0  # largest number of elements of one load or store, masked ones included

    def clear(self) -> None:
        self.loads, self.widest = [], 0

    def touched(self, tensor: torch.Tensor) -> set[int]:
        """Returns the indices of loaded elements of the flat contiguous `tensor`."""
        found, first = np.concatenate(self.loads), tensor.data_ptr()
        inside = found[(found >= first) & (found < first + tensor.nbytes)]
        return set(((inside - first) // tensor.element_size()).tolist())


def watch(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Patches the interpreter so that the result records the accesses of all later kernels of the test."""
    seen = Watched()
    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def watched_load(self: Any, pointers: Any, mask: Any, *others: Any) -> Any:
        seen.widest = max(seen.widest, pointers.data.size)
        unmasked = np.broadcast_to(mask.data.astype(bool), pointers.data.shape)
        seen.loads.append(pointers.data[unmasked].astype(np.int64))
        return load(self, pointers, mask, *others)

    def watched_store(self: Any, pointers: Any, *others: Any) -> Any:
        seen.widest = max(seen.widest, pointers.data.size)
        return store(self, pointers, *others)

    monkeypatch.setattr(builder, "create_masked_load", watched_load)
    monkeypatch.setattr(builder, "create_masked_store", watched_store)
    return seen
