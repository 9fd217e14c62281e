"""Which products are made in shares that the norm adds up, by what was measured on an H200."""

import pytest

from runtime.kernels.product_norm import in_shares


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
