"""The kernels of eight bits through Triton's interpreter, as `interpreted.py`, and collected as it is."""

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

from runtime.kernels import descriptors
from tests.kernels import fp8_cases, interpreted  # noqa: F401 - it mends the interpreter's loop bounds
from tests.kernels.interpreted import dtypes, matrix_dtypes

_convert = interpreter._convert_float


def _convert_exactly(given, kind, wanted, rounding):
    """The interpreter carries no rounded mantissa over into the exponent of e4m3."""
    if wanted == tl.float8e4nv and kind == tl.float32:
        made = torch.from_numpy(given.view(np.float32).copy()).to(torch.float8_e4m3fn)
        return made.view(torch.uint8).numpy().reshape(given.shape)
    return _convert(given, kind, wanted, rounding)


interpreter._convert_float = _convert_exactly


@dtypes
@pytest.mark.parametrize(("rows", "size"), [(1, 16), (5, 100), (9, 32), (1100, 8)])
def test_quantise(rows, size, dtype):
    fp8_cases.check_quantise(rows, size, dtype, "cpu")


@dtypes
@pytest.mark.parametrize(("rows", "size", "activation"), [(1, 16, "silu"), (5, 100, "gelu_tanh")])
def test_made_beside(rows, size, activation, dtype):
    fp8_cases.check_made_beside(rows, size, activation, dtype, "cpu")


@pytest.fixture(params=[False, True], ids=["loads", "boxes"])
def described(request, monkeypatch):
    """With the copy engine's boxes and without."""
    on = request.param
    monkeypatch.setattr(descriptors, "describable", lambda matrix: on and matrix.stride(0) % 16 == 0)


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 16, 8), (20, 48, 100), (70, 160, 70), (520, 32, 130)])
def test_linear(rows, inputs, outputs, described):
    fp8_cases.check_linear(rows, inputs, outputs, rows < 50, torch.float32, "cpu")


@matrix_dtypes
def test_linear_dtypes(dtype):
    fp8_cases.check_linear(33, 100, 36, True, dtype, "cpu")


@pytest.mark.parametrize(
    ("rows", "hidden", "width", "experts", "top_k"),
    [(1, 16, 16, 4, 2), (5, 48, 12, 12, 1), (70, 40, 24, 3, 2), (300, 32, 16, 3, 1), (130, 24, 40, 1, 1)],
)
def test_moe(rows, hidden, width, experts, top_k, described):
    """Few pairs an expert, some, many."""
    shared, crowded = rows != 70, rows == 70
    fp8_cases.check_moe(rows, hidden, width, experts, top_k, shared, crowded, torch.float32, "cpu", dead=0.1)


@matrix_dtypes
def test_moe_dtypes(dtype):
    fp8_cases.check_moe(70, 40, 24, 3, 2, True, False, dtype, "cpu")


def test_moe_gelu():
    fp8_cases.check_moe(20, 32, 24, 4, 2, False, False, torch.float32, "cpu", "gelu_tanh")
