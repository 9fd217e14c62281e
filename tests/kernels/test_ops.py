"""Tests of kernel selection, and of the behavior without triton."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runtime.kernels.ops import BATCH_INVARIANT_TORCH, BATCH_INVARIANT_TRITON, TORCH, TRITON, select_kernels

ROOT = Path(__file__).resolve().parents[2]


def test_selection():
    assert select_kernels(torch.device("cpu"), torch.bfloat16) is TORCH
    assert select_kernels(torch.device("cuda"), torch.bfloat16) is TRITON
    assert select_kernels(torch.device("cuda", 1), torch.float32) is TRITON
    assert select_kernels(torch.device("cuda"), torch.float64) is TORCH
    assert select_kernels(torch.device("cuda"), torch.bfloat16, deterministic=True) is BATCH_INVARIANT_TRITON
    assert select_kernels(torch.device("cpu"), torch.float32, deterministic=True) is BATCH_INVARIANT_TORCH
    assert select_kernels(torch.device("cuda"), torch.float64, deterministic=True) is BATCH_INVARIANT_TORCH


@pytest.mark.parametrize("quantization", ["int8", "int4", "int4_32", "fp8_blocks"])
def test_group_quantized_weights_have_batch_invariant_kernels(quantization):
    found = select_kernels(torch.device("cuda"), torch.bfloat16, quantization, deterministic=True)
    assert found.batch_invariant
    assert found.group_quantized_linear is BATCH_INVARIANT_TRITON.group_quantized_linear
    assert found.group_quantized_linear is not TRITON.group_quantized_linear


def test_without_triton_references_work_and_kernels_name_what_is_missing():
    program = """
import sys, torch
sys.modules["triton"] = None
from runtime.kernels.ops import TORCH, TRITON
assert TORCH.act_and_mul(torch.ones(2, 4)).shape == (2, 2)
x = torch.ones(2, 4)
for kernel, arguments in ((TRITON.act_and_mul, (x,)), (TRITON.rms_norm, (x, x[0], 1))):
    try:
        kernel(*arguments)
    except RuntimeError as error:
        assert "needs the triton package" in str(error)
    else:
        raise SystemExit("it ran")
"""
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert run.returncode == 0, run.stderr
