"""Tests of the split-K GEMM whose partial sums the following norm adds."""

import pytest
import torch

from runtime.kernels.layernorm import gemm_add_norm_reference


@pytest.mark.parametrize(("rows", "once"), [(32, True), (33, False)])
def test_only_a_split_gemm_is_rounded_once(rows, once):
    drawn = torch.Generator().manual_seed(5)
    x, weight, residual = (
        torch.randn(*shape, generator=drawn).bfloat16() for shape in ((rows, 2048), (2064, 2048), (rows, 2064))
    )
    made = x.double() @ weight.double().T
    rounded = (made if once else made.bfloat16().double()) + residual.double()
    _, total = gemm_add_norm_reference(x, weight, residual, None, 1e-6)
    assert (total == rounded.bfloat16()).double().mean() > 0.999
