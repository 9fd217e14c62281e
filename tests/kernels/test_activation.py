"""Tests of the tile selection of the fused gate-up GEMM."""

import pytest

from runtime.kernels.activation import select_gate_up_tile


@pytest.mark.parametrize("width", [256, 2112, 4096, 12288, 18944])
def test_steps_of_powers_of_two_select_every_tile(width):
    """Warmup runs steps of these sizes before the server is ready, so no tile is compiled while requests wait."""
    met = {select_gate_up_tile(1 << n, 2 * width, 132) for n in range(14)}
    assert {select_gate_up_tile(rows, 2 * width, 132) for rows in range(1, 8193, 7)} - met <= {None}
