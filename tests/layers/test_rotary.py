"""Tests of the table of cosines and sines against the frequencies of transformers."""

import pytest
import torch

from runtime.layers.layer_factory import LayerFactory
from runtime.layers.rotary import RotaryTable, Yarn


@pytest.mark.parametrize(
    ("dim", "theta", "yarn"),
    [
        (128, 1e6, Yarn(16.0, 16384)), (64, 1e4, Yarn(4.0, 512, beta_fast=8.0, beta_slow=2.0, magnitude=1.25)),
        (8, 1e4, Yarn(4.0, 64)), (16, 5e5, Yarn(40.0, 4096, beta_fast=1e3, beta_slow=700.0)),
    ],
)  # fmt: skip
def test_yarn(dim, theta, yarn):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    says = {"rope_type": "yarn", "rope_theta": theta, "factor": yarn.factor, "attention_factor": yarn.magnitude}
    says |= {"original_max_position_embeddings": yarn.original}
    says |= {"beta_fast": yarn.beta_fast, "beta_slow": yarn.beta_slow}
    config = LlamaConfig(hidden_size=dim, num_attention_heads=1, head_dim=dim, rope_parameters=says)
    frequencies, magnitude = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    assert not torch.allclose(frequencies.double(), theta ** -(torch.arange(0, dim, 2).double() / dim))
    table = RotaryTable(LayerFactory.create("cpu", torch.float64), dim, theta, 700, yarn).cover(600)
    angles = torch.outer(torch.arange(len(table)).double(), frequencies.double())
    expected = torch.cat([angles.cos(), angles.sin()], dim=-1) * magnitude
    torch.testing.assert_close(table, expected, rtol=0, atol=2e-4)  # transformers' frequencies are float32
