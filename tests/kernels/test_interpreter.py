"""Runs interpreted*.py under Triton's interpreter, a part at a time."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("interpreted", "elementwise"),
        ("interpreted", "moe"),
        ("interpreted", "attention"),
        ("interpreted_wide", ""),
        ("interpreted_models", ""),
        ("interpreted_fp8", ""),
        ("interpreted_grouped", ""),
    ],
)
def test_kernels_equal_their_references(file, part):
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-k", part]
    run = subprocess.run(
        [*command, f"tests/kernels/{file}.py"],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1790,  # of one that hangs, however busy the machine is
        check=False,
    )
    passed = re.search(r"(\d+) passed", run.stdout)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert passed, run.stdout
    assert int(passed[1]) > 5, run.stdout
