"""The product whose bits do not depend on the number of rows against float64, as `cases.py`."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from runtime.kernels.batch_invariant_gemm import batch_invariant_gemm
from tests.kernels.cases import assert_near, random


def check_product(rows: int, inputs: int, outputs: int, dtype: torch.dtype, device: str) -> None:
    x, weight = (random(n, inputs, dtype=dtype, device=device, seed=s) for n, s in ((rows, 5), (outputs, 6)))
    bias = random(outputs, dtype=dtype, device=device, seed=7)
    expected = F.linear(x.double(), weight.double())
    assert_near(batch_invariant_gemm(x, weight), expected, dtype)
    assert_near(batch_invariant_gemm(x, weight, bias), expected + bias.double(), dtype)
