"""Which products are made in shares that the norm adds up, by what was measured on an H200."""

import pytest
import torch

from runtime.kernels.product_norm import in_shares, product_add_norm_reference


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "expected"),
    [
        (32, 12288, 4096, True), (256, 12288, 4096, True), (257, 12288, 4096, False), (256, 18944, 3584, True),
        (32, 4096, 4096, True), (64, 4096, 4096, False), (128, 4096, 2048, True), (256, 4096, 2048, False),
        (32, 1024, 1024, False), (32, 12296, 4096, False),
    ],
)  # fmt: skip
def test_shares(rows, inputs, outputs, expected):
    assert in_shares(rows, inputs, outputs) == expected


@pytest.mark.parametrize(("rows", "once"), [(32, True), (33, False)])
def test_a_product_in_shares_is_rounded_with_the_sum_alone(rows, once):
    drawn = torch.Generator().manual_seed(5)
    x, weight, residual = (
        torch.randn(*shape, generator=drawn).bfloat16() for shape in ((rows, 2048), (2064, 2048), (rows, 2064))
    )
    made = x.double() @ weight.double().T
    rounded = (made if once else made.bfloat16().double()) + residual.double()
    _, total = product_add_norm_reference(x, weight, residual, None, 1e-6)
    assert (total == rounded.bfloat16()).double().mean() > 0.999
