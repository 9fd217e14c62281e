"""Tests of a tiny model of every family."""

import copy
import itertools
import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from runtime.errors import ConfigError
from runtime.kernels.ops import select_kernels
from runtime.layers.layer_factory import LayerFactory
from runtime.models.base import _FAMILIES, resolve_family
from runtime.parameters.weight import named_weights
from runtime.quantization.base import QuantizedWeight
from runtime.weights.checkpoint import resolve_checkpoint
from runtime.weights.weight_formats import meta_model
from tests.matrix import marked
from tests.models import tiny
from tests.models.paged import load
from tests.models.tiny import EVERY, checkpoint_of, tiny_logits
from tests.oracle.spelling import KINDS


@pytest.mark.parametrize("key", marked(EVERY, quick=("llada2_tiny", "dream", "diffusion_gemma")))
def test_layouts_give_the_same_logits(tmp_path, key):
    path = checkpoint_of(key, tmp_path)
    unified, distinct = (tiny_logits(key, path, torch.float64, layout=name) for name in ("unified", "distinct"))
    for one, other in zip(unified, distinct, strict=True):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def of_what_was_rounded(*where):
    """Returns an unquantized model with the dequantized weights of a quantized one. `where`: arguments of `load`."""
    *where, form = where
    model, rounded = load(*where, None), named_weights(load(*where, form))
    for name, weight in named_weights(model).items():
        weight.load((), rounded[name].tensor)
    assert sum(isinstance(weight, QuantizedWeight) for weight in rounded.values()) > 3
    return model


# Limits of the relative error: lowest median, highest median, highest 90th percentile.
FORMATS = {"fp8": (0.01, 0.25, 0.6), "int8": (0.001, 0.1, 0.3), "int4": (0.01, 0.6, 1.2), "nvfp4": (0.01, 0.6, 1.2)}


ONE_FORMAT = [(key, list(FORMATS)[n % len(FORMATS)]) for n, key in enumerate(EVERY)]  # per family


@pytest.mark.parametrize(("key", "form"), marked(itertools.product(EVERY, FORMATS), quick=ONE_FORMAT))
def test_quantized_models(monkeypatch, tmp_path, key, form):
    """Logits equal those of an unquantized model with the dequantized weights, and most are near the checkpoint's."""
    path = checkpoint_of(key, tmp_path)
    unquantized, out = (tiny_logits(key, path, torch.float32, quantization=name) for name in (None, form))
    monkeypatch.setattr(tiny, "load", lambda *where: of_what_was_rounded(*where[:-1], form))
    for ours, expected in zip(out, tiny_logits(key, path, torch.float32), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3)
    relative_error = (torch.cat(out) - torch.cat(unquantized)).norm(dim=1) / torch.cat(unquantized).norm(dim=1)
    least, median, maximum = FORMATS[form]
    assert least < float(relative_error.median()) < median
    assert float(relative_error.quantile(0.9)) < maximum


def family_of(key, directory):
    name = key if key in KINDS and KINDS[key].needs_model_name else None
    return resolve_family(name, resolve_checkpoint(str(checkpoint_of(key, directory))).config).key


@pytest.mark.parametrize("key", EVERY)
def test_a_checkpoint_is_recognized(tmp_path, key):
    assert family_of(key, tmp_path) in {family.key for family in _FAMILIES.values()}


def test_no_family_is_left_out(tmp_path):
    found = set()
    for key in EVERY:
        with suppress(ConfigError):  # test_a_checkpoint_is_recognized reports an unknown family
            found.add(family_of(key, tmp_path / key))
    missing = {family.key for family in _FAMILIES.values()} - found
    assert not missing, f"no tiny checkpoint of {missing}: add them to KINDS in tests/oracle/spelling.py"


HUGE = ("hidden_size", "d_model", "num_hidden_layers", "n_layers", "num_experts", "head_dim", "max_position_embeddings",
        "max_sequence_length", "vocab_size")  # fmt: skip


def stated(config, name):
    """Returns the part of a config.json that has the field, or None."""
    return next((part for part in (config, config.get("text_config", {})) if part.get(name) is not None), None)


@pytest.mark.parametrize(("key", "size"), [("llada2_tiny", 10**21), *((key, 2**30) for key in EVERY)])
def test_sizes_that_the_files_do_not_have_are_refused_and_not_allocated(tmp_path, key, size):
    path = Path(shutil.copytree(checkpoint_of(key, tmp_path / "written"), tmp_path / "huge"))
    found = json.loads((path / "config.json").read_text())
    for name in HUGE:
        config = copy.deepcopy(found)
        if (part := stated(config, name)) is None:
            continue
        part[name] = size
        (path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ConfigError):
            tiny_logits(key, path, torch.float32)


@pytest.mark.parametrize("key", EVERY)
def test_a_meta_model_has_the_weights_of_every_build(tmp_path, key):
    """Also covers the layout for GPU kernels, which needs no GPU here."""
    checkpoint = resolve_checkpoint(str(checkpoint_of(key, tmp_path)))
    family = resolve_family(key if key in KINDS and KINDS[key].needs_model_name else None, checkpoint.config)
    arch = family.parse(checkpoint.config)
    shapes = {name: weight.shape for name, weight in named_weights(meta_model(family, arch, torch.bfloat16)).items()}
    for quantization in (None, "fp8", "int4", "nvfp4"):
        kernels = select_kernels(torch.device("cuda"), torch.bfloat16, quantization)
        build = LayerFactory(torch.device("cpu"), torch.bfloat16, kernels, "torch", quantization=quantization)
        assert {name: weight.shape for name, weight in named_weights(family.make(arch, build)).items()} == shapes
