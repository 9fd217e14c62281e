"""Tests of full models in Triton's interpreter, on the CPU; collected like interpreted.py."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from runtime.kernels.moe_router import split_bf16x3
from runtime.kernels.ops import BATCH_INVARIANT_TRITON, TRITON
from runtime.layers.attention import TritonAttention
from runtime.layers.kv_pool import LAYOUTS
from runtime.layers.layer_factory import LayerFactory
from runtime.models.base import families, resolve_family
from runtime.quantization.checkpoint.scheme import quantization_of
from runtime.weights.checkpoint import resolve_checkpoint
from runtime.weights.loader import load_model
from tests.distributed.threads import together
from tests.golden import GOLDEN
from tests.kernels import in_order, interpreting  # noqa: F401
from tests.models.canvas import Driver, Run
from tests.models.paged import logits_in_chunks
from tests.models.tiny import write_random
from tests.oracle.tiny import write_tiny

MODELS = ("llada2", "llada2dot2", "sdar_moe", "stable_diffcoder", "dream", "llada_moe")


IDS = [[5, 6, 7, 8, 31, 31, 31, 31, 9, 9], [3, 1, 4, 1]]
PLAN = {"block_size": 4, "page_size": 4, "chunk_blocks": [2, 1]}


def loader_of(directory, key, **changes):
    """Writes a tiny checkpoint and returns a function that loads it with further fields of the layer factory."""
    changes |= {"num_hidden_layers": 2, "head_dim": 16}
    if key.startswith("llada2"):
        write_tiny(directory, seed=4, **changes)
    else:
        write_random(key, directory, 4, **changes)
    checkpoint, family = resolve_checkpoint(str(directory)), resolve_family(key, {})
    arch, build = family.parse(checkpoint.config), LayerFactory.create("cpu", torch.float32)

    def load(**own):
        model = load_model(checkpoint, family, arch, replace(build, **own))
        if own:
            model.attention = TritonAttention(model.attention.shape, grouped=True, batch_invariant=False)
        return model

    return load


OWN = {"llada2dot2": {"expert_capacity": 2}, "llada_moe": {"clip_qkv": 0.7, "moe_layer_freq": [0, 1]}}


@pytest.mark.parametrize("key", [key for key in MODELS if key in families()])
def test_a_full_model(tmp_path, key):
    load = loader_of(tmp_path, key, **OWN.get(key, {}))
    found = logits_in_chunks(load(kernels=TRITON), IDS, **PLAN, layout=list(LAYOUTS)[len(key) % 2])
    for out, expected in zip(found, logits_in_chunks(load(), IDS, **PLAN), strict=True):
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("key", "deals"), [("llada2", False), ("llada2", True), ("sdar_moe", False), ("dream", False)])
def test_a_model_in_shards(tmp_path, key, deals):
    """Checks a model sharded over two ranks, and the argmax over vocabulary shards, neither of which has all logits."""
    if key not in families():
        pytest.skip("another family")
    load = loader_of(tmp_path, key, **({} if key == "llada2" else {"vocab_size": 41}))
    full_model = load()
    hidden = torch.randn(5, full_model.config.hidden, generator=torch.Generator().manual_seed(3))
    bans = {"mask_id": 39, "max_token_id": 30, "allowed_ids": [33]}

    def shard(group):
        model = load(kernels=TRITON, group=group, expert_parallel=deals)
        return logits_in_chunks(model, IDS, **PLAN), model.lm_head.argmax(hidden, **bans)

    parts = together(2, shard)
    for *ours, expected in zip(
        *(logits for logits, _ in parts), logits_in_chunks(full_model, IDS, **PLAN), strict=True
    ):
        torch.testing.assert_close(torch.cat(ours, 1), expected, rtol=1e-4, atol=1e-4)
    token, conf = full_model.lm_head.argmax(hidden, **bans)
    for _, (ours, sure) in parts:
        assert torch.equal(ours, token)
        torch.testing.assert_close(sure, conf)


CANVASES = pytest.mark.skipif("diffusion_gemma" not in families(), reason="the only family of canvases of noise")


def canvas_model(kernels, path=GOLDEN / "diffusion_gemma", **own):
    """Returns a tiny DiffusionGemma.

    Args:
        kernels: Kernel set. None: the torch path.
        path: Its checkpoint.
        own: Further fields of the layer factory.
    """
    checkpoint, family = resolve_checkpoint(str(path)), resolve_family("diffusion_gemma", {})
    arch, quantization = family.parse(checkpoint.config), quantization_of(checkpoint.config, None)
    build = LayerFactory.create("cpu", torch.float32, quantization=quantization)
    if kernels is None:
        return load_model(checkpoint, family, arch, build)
    model = load_model(checkpoint, family, arch, replace(build, kernels=kernels, **own))
    model.attentions = [
        TritonAttention(attention.shape, grouped=True, batch_invariant=kernels.batch_invariant)
        for attention in model.attentions
    ]
    return model


def canvas_logits(model, layout):
    """Returns the logits of a self-conditioned canvas, and of committed rows of another request."""
    driver = Driver(model, 2, 40, 8, torch.float32, layout=layout)
    driver.commit(0, list(range(24)), 24)
    shard = model.vocab_shard
    here = slice(None) if shard is None else slice(shard.local.start, shard.local.stop)
    signal = model.compute_self_conditioning(torch.eye(224)[:4, here])
    return driver.step(Run(0, [9, 8, 7, 6], 24, open=True, signal=signal), Run(1, [3, 1, 4], 0))


def in_parts(model):
    """Splits the router weights as in a bfloat16 model, but into float16, which the interpreter can multiply."""
    for layer in model.layers:
        router = layer.experts.router
        router.weight = SimpleNamespace(kernel_arg=split_bf16x3(router.weight.tensor, torch.float16))


@CANVASES
@pytest.mark.parametrize("parts", [False, True], ids=["whole_routers", "routers_in_parts"])
@pytest.mark.parametrize("kernels", [TRITON, BATCH_INVARIANT_TRITON], ids=["plain", "deterministic"])
def test_a_canvas_model(kernels, parts):
    """The model has two kinds of layers; the batch has committed and editable rows."""
    model = canvas_model(kernels)
    if parts:
        in_parts(model)
    expected = canvas_logits(canvas_model(None), "unified")
    for out, right in zip(canvas_logits(model, "distinct"), expected, strict=True):
        torch.testing.assert_close(out, right, rtol=1e-4, atol=1e-4)


@CANVASES
def test_a_canvas_model_with_quantized_experts(tmp_path):
    from tests.models.test_diffusion_gemma import quantize_experts  # which imports the family

    quantized, whole = quantize_experts(tmp_path, "nvfp4, modelopt", "encoder")
    expected = canvas_logits(canvas_model(None, whole), "unified")
    for out, right in zip(canvas_logits(canvas_model(TRITON, quantized), "distinct"), expected, strict=True):
        torch.testing.assert_close(out, right, rtol=1e-4, atol=1e-4)


@CANVASES
@pytest.mark.parametrize("deals", [False, True])
def test_a_canvas_model_in_shards(deals):
    """Each rank sums its experts' outputs before the all-reduce."""
    both = together(
        2, lambda group: canvas_logits(canvas_model(TRITON, group=group, expert_parallel=deals), "distinct")
    )
    for *ours, right in zip(*both, canvas_logits(canvas_model(None), "unified"), strict=True):
        torch.testing.assert_close(torch.cat(ours, 1), right, rtol=1e-4, atol=1e-4)


@CANVASES
def test_a_canvas_model_with_concurrent_requests(monkeypatch):
    in_order.patch(monkeypatch)
    model = canvas_model(BATCH_INVARIANT_TRITON)
    in_parts(model)
    canvas = list(range(60, 76))
    results = []
    for chunk, others in ((24, 0), (17, 2)):
        driver = Driver(model, 3, 48, 8, torch.float32)
        driver.commit(0, list(range(24)), chunk)
        signal = model.compute_self_conditioning(torch.eye(224)[:16])
        concurrent = [Run(n, list(range(3 * n, 8 * n)), 0) for n in range(1, others + 1)]
        results.append(driver.step(Run(0, canvas, 24, open=True, signal=signal), *concurrent)[0])
    alone, among = results
    assert torch.equal(alone, among), int((alone != among).any(1).sum())
