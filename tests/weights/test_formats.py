"""Tests of the weight interface of `LayerFactory`.

It accepts other formats, shards and adapters without changes to the loader, the families or the layers.
"""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from runtime.errors import ConfigError
from runtime.kernels.ops import TORCH
from runtime.layers.layer_factory import LayerFactory
from runtime.layers.parameter import UnquantizedWeight, named_weights
from runtime.models.base import resolve_family
from runtime.weights.checkpoint import resolve_checkpoint
from runtime.weights.loader import load_model
from tests.golden import GOLDEN
from tests.models.paged import logits_in_chunks
from tests.weights.formats import Adapted, Formats, Int8, RankWeight, moe_int8, rounded

TINY = GOLDEN / "llada2_tiny"
FACTORY = LayerFactory.create("cpu", torch.float32)
INT8 = replace(TORCH, moe=moe_int8)


def load(form=None, path=TINY, change=lambda family: family, progress=None, kernels=TORCH):
    checkpoint = resolve_checkpoint(str(path))
    family = change(resolve_family(None, checkpoint.config))
    build = FACTORY if form is None else Formats.of(replace(FACTORY, kernels=kernels), form)
    return load_model(checkpoint, family, family.parse(checkpoint.config), build, progress)


def write(path, tensors):
    (path / "config.json").write_text((TINY / "config.json").read_text())
    save_file(tensors, path / "model.safetensors")


def logits(model):
    ids = load_file(TINY / "expected.safetensors")["input_ids"][0].tolist()
    return logits_in_chunks(model, [ids], block_size=8, page_size=8, chunk_blocks=[3])[0]


def linears(model):
    """Returns the weights in the tested format: those of linear layers and experts, not the router and the tables."""
    return {name: weight for name, weight in named_weights(model).items() if not isinstance(weight, UnquantizedWeight)}


@pytest.fixture(scope="module")
def unquantized():
    model = load()
    return model, logits(model)


def test_int8_made_while_loading(unquantized, tmp_path):
    """The logits equal those of a checkpoint with the rounded weights, and are near the original ones."""
    tensors = load_file(TINY / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.dim() == 2 and not name.endswith(("gate.weight", "word_embeddings.weight", "lm_head.weight")):
            codes, scale = rounded(tensor)
            assert not torch.equal(tensor, codes * scale), name
            tensors[name] = codes * scale
    write(tmp_path, tensors)
    reports = []
    model = load(Int8, progress=lambda *progress: reports.append(progress), kernels=INT8)
    assert len(linears(model)) == 3 * 2 + 2 + 2 * 4  # attention, the dense layer, experts and shared experts
    out, expected = logits(model), logits(load(path=tmp_path))
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    assert 1e-4 < (out - unquantized[1]).norm() / unquantized[1].norm() < 0.1
    nbytes = sum(weight.nbytes for weight in named_weights(model).values())
    assert reports[-1] == ("weights", nbytes, nbytes)
    assert nbytes < 0.5 * sum(weight.nbytes for weight in named_weights(unquantized[0]).values())


@pytest.mark.parametrize("ranks", [2, 3])
def test_shards_are_filled_by_coordinates_of_the_full_weight(unquantized, ranks):
    """Each shard is a range of outputs with boundaries inside checkpoint tensors. Together they are the full weight."""

    def form(rank):
        return lambda build, shape: (
            RankWeight(build, shape, rank, ranks) if len(shape) == 2 else build.parameter(*shape)
        )

    models = [load(form(rank)) for rank in range(ranks)]
    parameters, every = named_weights(unquantized[0]), [linears(model) for model in models]
    assert len(every[0]) == 3 * 2 + 2 + 2 * 2
    for name in every[0]:
        group = [each[name] for each in every]
        assert all(shard.shape == parameters[name].shape and shard.size < parameters[name].size for shard in group)
        assert torch.equal(torch.cat([shard.tensor for shard in group]), parameters[name].tensor)
        for shard in group:
            shard.group = group
    for model in models:
        torch.testing.assert_close(logits(model), unquantized[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("base", [Int8, None])
def test_an_adapter_works_with_any_format(unquantized, base):
    def under(build, shape):
        return build.parameter(*shape) if base is None else base(build, shape)

    def form(build, shape):
        return Adapted(under(build, shape), 2) if len(shape) == 2 else under(build, shape)

    model = load(form, kernels=TORCH if base is None else INT8)
    merged = load()
    for name, weight in named_weights(model).items():
        if isinstance(weight, Adapted | Int8):
            named_weights(merged)[name].load((), weight.tensor)
    out = logits(model)
    torch.testing.assert_close(out, logits(merged), rtol=1e-4, atol=1e-4)
    assert (out - unquantized[1]).norm() / unquantized[1].norm() > 0.01


class Forgetful(UnquantizedWeight):
    """A weight that loads nothing of slices that begin at its first output."""

    def __init__(self, build, shape):
        super().__init__(shape, build.dtype, build.device)

    def load_slice(self, part, tensor):
        return 0 if part.ranges[0].start == 0 else super().load_slice(part, tensor)


def test_a_format_must_load_all_its_elements():
    with pytest.raises(AssertionError, match=r"format of 'layers.0.self_attn.qkv_proj.weight', .* did not load"):
        load(Forgetful)


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


def test_parameters_that_no_checkpoint_fills_are_errors():
    def stray(hold):
        def change(family):
            def make(arch, build):
                model = family.make(arch, build)
                model.norm.stray = hold(build)
                return model

            return replace(family, make=make)

        return change

    for hold in (lambda build: nn.Parameter(torch.empty(3)), lambda build: build.parameter(3)):
        with pytest.raises(AssertionError, match=r"does not fill 'norm.stray' exactly once"):
            load(change=stray(hold))


def test_the_tensor_that_a_format_refuses_is_named(tmp_path):
    tensors = load_file(TINY / "model.safetensors")
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    tensors[name][5, 6] = torch.inf
    write(tmp_path, tensors)
    with pytest.raises(ConfigError, match=f"tensor '{name}' of {tmp_path} holds NaN or infinite values"):
        load(Int8, tmp_path)
