"""Products whose partial sums the norm adds up."""

import pytest
import torch

from runtime.kernels.layernorm import gemm_add_norm_reference


@pytest.mark.parametrize(("rows", "once"), [(32, True), (33, False)])
def test_a_gemm_in_splits_is_rounded_with_the_sum_alone(rows, once):
    drawn = torch.Generator().manual_seed(5)
    x, weight, residual = (
        torch.randn(*shape, generator=drawn).bfloat16() for shape in ((rows, 2048), (2064, 2048), (rows, 2064))
    )
    made = x.double() @ weight.double().T
    rounded = (made if once else made.bfloat16().double()) + residual.double()
    _, total = gemm_add_norm_reference(x, weight, residual, None, 1e-6)
    assert (total == rounded.bfloat16()).double().mean() > 0.999
