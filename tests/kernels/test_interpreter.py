"""Runs interpreted*.py in Triton's interpreter, one part at a time."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


IN_CI = [("interpreted", "elementwise")]
SLOW = [
    ("interpreted_models", ""), ("interpreted", "moe"), ("interpreted", "attention"), ("interpreted_large_head", ""),
    ("interpreted_quantized", "fp8"), ("interpreted_quantized", "not fp8"),
]  # fmt: skip


@pytest.mark.timeout(3600)
@pytest.mark.minutes
@pytest.mark.parametrize(
    ("file", "part"),
    [
        *(pytest.param(*case, marks=pytest.mark.matrix) for case in IN_CI),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
    ],
)
def test_kernels_equal_their_references(file, part):
    assert interpret(f"tests/kernels/{file}.py", "-m", "not slow and not gpu", "-k", part) > 5


def interpret(*arguments):
    """Runs pytest with Triton's interpreter; returns the number of tests that passed."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *arguments]
    run = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    passed = re.search(r"(\d+) passed", run.stdout)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert passed, run.stdout
    return int(passed[1])
