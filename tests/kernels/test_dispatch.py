"""Which kernels a model gets, and what happens where triton is not installed."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import torch

from runtime.kernels.dispatch import TORCH, TRITON, Kernels, select_kernels

ROOT = Path(__file__).resolve().parents[2]


def test_selection():
    assert select_kernels(torch.device("cpu"), torch.bfloat16) is TORCH
    assert select_kernels(torch.device("cuda"), torch.bfloat16) is TRITON
    assert select_kernels(torch.device("cuda", 1), torch.float32) is TRITON
    assert select_kernels(torch.device("cuda"), torch.float64) is TORCH


def test_the_two_sets_share_nothing():
    assert {f.name for f in fields(Kernels)} >= {"rms_norm", "route", "moe"}
    assert all(getattr(TORCH, f.name) != getattr(TRITON, f.name) for f in fields(Kernels))


def test_without_triton_references_work_and_kernels_say_what_is_missing():
    program = """
import sys, torch
sys.modules["triton"] = None
from runtime.kernels.dispatch import TORCH, TRITON
assert TORCH.gate_mul(torch.ones(2, 4)).shape == (2, 2)
x = torch.ones(2, 4)
for kernel, arguments in ((TRITON.gate_mul, (x,)), (TRITON.rms_norm, (x, x[0], 1))):
    try:
        kernel(*arguments)
    except RuntimeError as error:
        assert "needs the triton package" in str(error)
    else:
        raise SystemExit("it ran")
"""
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
