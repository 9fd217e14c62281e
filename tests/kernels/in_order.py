"""Makes Triton's interpreter accumulate dot products in order, as a matrix unit does.

Each dot product is added to the accumulator along the depth, from the first element to the last. A library may use
another order of summation for each shape, so its results could not be compared bit by bit.
"""

import random

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

from tests.kernels.quantized_cases import Kernel


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", _dot)


def _dot(self, a, b, d, input_precision, max_num_imprecise_acc):
    left, right, total = a.data.astype(np.float32), b.data.astype(np.float32), d.data.copy()
    for at in range(left.shape[1]):
        total += left[:, at, None] * right[None, at, :]
    return interpreter.TensorHandle(total, d.dtype.scalar)


def check_alike(kernel: Kernel, rows: int, seed: int) -> None:
    """Checks that a row has the same bits in all of `rows`, alone, in contiguous ranges, and in random subsets."""
    numbers = random.Random(seed)
    full = kernel(torch.arange(rows))
    chosen = [[numbers.randrange(rows)] for _ in range(2)]
    for count in (3, rows // 5, rows):
        first = numbers.randrange(rows - count + 1)
        chosen += [list(range(first, first + count)), numbers.sample(range(rows), count)]
    for some in chosen:
        at = torch.tensor(some)
        for one, other in zip(kernel(at), full, strict=True):
            assert torch.equal(one, other[at]), (len(some), int((one != other[at]).sum()))
