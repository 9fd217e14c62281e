"""Tests of the oracle's forward pass against the golden logits."""

import torch
from safetensors.torch import load_file

from tests.golden import GOLDEN
from tests.oracle.model import OracleModel


def test_golden_logits() -> None:
    directory = GOLDEN / "llada2_tiny"
    expected = load_file(directory / "expected.safetensors")
    logits = OracleModel.load(directory).logits(expected["input_ids"][0].tolist())
    torch.testing.assert_close(logits, expected["logits"][0].double(), atol=5e-6, rtol=1e-5)


def test_golden_answers_detect_a_wrong_mask() -> None:
    """Another block size, or causal attention (block size 1), changes the logits far beyond the tolerance."""
    directory = GOLDEN / "llada2_tiny"
    expected = load_file(directory / "expected.safetensors")
    for block in (1, 4, 32):
        logits = OracleModel.load(directory, block=block).logits(expected["input_ids"][0].tolist())
        assert (logits - expected["logits"][0]).abs().max() > 0.01
