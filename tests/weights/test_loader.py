"""Tests that the loader fills each element of each weight once, and names what a format refuses."""

from dataclasses import dataclass, replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from runtime.errors import ConfigError
from runtime.layers.layer_factory import LayerFactory
from runtime.models.base import resolve_family
from runtime.parameters.sharding import Shard
from runtime.parameters.weight import UnquantizedWeight
from runtime.weights.checkpoint import resolve_checkpoint
from runtime.weights.loader import load_model
from tests.golden import GOLDEN

TINY = GOLDEN / "llada2_tiny"
BUILD = LayerFactory.create("cpu", torch.float32)


def load(path=TINY, change=lambda family: family, build=BUILD):
    checkpoint = resolve_checkpoint(str(path))
    family = change(resolve_family(None, checkpoint.config))
    return load_model(checkpoint, family, family.parse(checkpoint.config), build)


class Forgetful(UnquantizedWeight):
    """A weight that loads nothing of slices that begin at its first output."""

    def load_slice(self, part, tensor):
        return 0 if part.ranges[0].start == 0 else super().load_slice(part, tensor)


@dataclass(frozen=True)
class ForgetfulFactory(LayerFactory):
    def weight(self, *shape: int, shard: Shard | None = None):
        return Forgetful(shape, self.dtype, self.device)


def test_a_format_must_load_all_its_elements():
    build = ForgetfulFactory(BUILD.device, BUILD.dtype, BUILD.kernels, BUILD.attn_impl)
    with pytest.raises(AssertionError, match=r"format of 'layers.0.self_attn.qkv_proj.weight', .* did not load"):
        load(build=build)


def test_a_weight_map_must_fill_each_element_once():
    """A count of elements alone would not detect that one slice is loaded twice and another never."""
    gate = "model.layers.1.mlp.experts.{}.gate_proj.weight"

    def twice(family):
        def weights(arch):
            map = family.weights(arch)
            return replace(map, slots=map.slots | {gate.format(2): map.slots[gate.format(1)]})

        return replace(family, weights=weights)

    with pytest.raises(AssertionError, match=r"does not fill 'layers.1.mlp.gate_up_proj' exactly once"):
        load(change=twice)


@pytest.mark.parametrize("hold", [lambda build: nn.Parameter(torch.empty(3)), lambda build: build.parameter(3)])
def test_parameters_that_no_checkpoint_fills_are_errors(hold):
    def change(family):
        def make(arch, build):
            model = family.make(arch, build)
            model.norm.stray = hold(build)
            return model

        return replace(family, make=make)

    with pytest.raises(AssertionError, match=r"does not fill 'norm.stray' exactly once"):
        load(change=change)


def test_the_tensor_that_a_format_refuses_is_named(tmp_path):
    tensors = load_file(TINY / "model.safetensors")
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    tensors[name][5, 6] = torch.inf
    (tmp_path / "config.json").write_text((TINY / "config.json").read_text())
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=f"tensor '{name}' of {tmp_path} holds NaN or infinite values"):
        load(tmp_path, build=LayerFactory.create("cpu", torch.float32, quantization="int8"))
