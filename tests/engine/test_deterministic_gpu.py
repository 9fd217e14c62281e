"""Tests of `--deterministic` on a GPU: bits do not depend on batches, chunks, prefix hits or CUDA graphs."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from runtime.bench.model_shapes import architecture, random_model
from runtime.kernels.forward_batch import ForwardBatch
from runtime.layers.kv_pool import UnifiedPool
from runtime.layers.layer_factory import LayerFactory
from tests.engine.bits import answers, check, check_looks, listening, questions
from tests.models.paged import make_batch, page_tables
from tests.worker.replays import Served

pytestmark = pytest.mark.gpu  # selected explicitly, so a missing device must fail these tests and not skip them
BEFORE, CANVAS = 128, 128  # numbers of final positions and of positions of a canvas
SCHEDULES = (
    {"max_num_reqs": 64, "max_num_batched_tokens": 512},
    {"max_num_reqs": 5, "max_num_batched_tokens": 128, "enforce_eager": True},
)


@pytest.fixture
def received(monkeypatch):
    with listening(monkeypatch) as found:
        yield found


@pytest.mark.parametrize("kind", ["bfloat16", "fp8", "int8", "int4", "nvfp4"])
@pytest.mark.parametrize("folder", ["llada2_tiny", "sdar", "llada", "dmax", "diffusion_gemma"])
def test_bits_do_not_depend_on_the_batch(received, folder, kind):
    flags = {"device": "cuda", "dtype": "bfloat16"} | ({} if kind == "bfloat16" else {"quantization": kind})
    check(Served(folder), questions(24, 1), received, *SCHEDULES, **flags)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_bits_of_several_canvases_of_diffusion_gemma_do_not_depend_on_the_batch(received, dtype):
    asked = questions(16, 4, tokens=40, longest=40)
    check(Served("diffusion_gemma"), asked, received, *SCHEDULES, device="cuda", dtype=dtype)


@pytest.mark.parametrize("attn_impl", ["triton", "torch"])
def test_bits_with_other_attention_do_not_depend_on_the_batch(received, attn_impl):
    check(Served("llada2_tiny"), questions(12, 2), received, *SCHEDULES, device="cuda", attn_impl=attn_impl)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_logits_for_the_host_are_computed_per_request(tmp_path, monkeypatch, dtype):
    check_looks(tmp_path, monkeypatch, device="cuda", dtype=dtype)


@pytest.mark.parametrize("folder", ["llada2_tiny", "sdar_moe", "dmax", "diffusion_gemma"])
def test_answers_in_float32_equal_those_without_the_flag(folder):
    asked, flags = [questions(8, 5)], {"device": "cuda", "dtype": "float32"}
    expected = answers(Served(folder), asked, deterministic=False, **flags)
    assert answers(Served(folder), asked, **flags) == expected
    assert answers(Served(folder), asked, enforce_eager=True, **flags) == expected


class Wide:
    """Two layers with the width of a real model, and its hidden states in batches of different sizes."""

    def __init__(self, name: str, quantization: str | None, attn_impl: str) -> None:
        config = dict(architecture(name))
        config |= {"num_hidden_layers": 2, "vocab_size": 1024, "pad_token_id": 0, "eos_token_id": 1}
        build = LayerFactory.create("cuda", torch.bfloat16, attn_impl, quantization, deterministic=True)
        self.model = random_model(config, build)
        generator = torch.Generator().manual_seed(1)
        self.ids = [torch.randint(2, 1000, (256,), generator=generator).tolist() for _ in range(64)]

    def hidden(self, count: int, cuts: list[int]) -> torch.Tensor:
        """Returns hidden states [256, hidden] of the first of `count` sequences."""
        tables, pages = page_tables([256] * count, 32, torch.Generator().manual_seed(count))
        pool = UnifiedPool(self.model.kv_shapes, num_pages=pages + 1, page_size=32, dtype=torch.bfloat16, device="cuda")
        found, first = [], 0
        for end in cuts:
            rows = [(ids, first, end) for ids in self.ids[:count]]
            batch: ForwardBatch = make_batch(rows, tables.cuda(), block_size=32, page_size=32)
            batch = replace(batch, max_seq_len=256)
            left = self.model.forward(self.model.embed(batch.tokens), batch, pool)
            found.append(self.model.final_hidden_states(left)[: end - first])
            first = end
        return torch.cat(found)


@pytest.mark.parametrize("attn_impl", ["triton_grouped", "triton"])
@pytest.mark.parametrize("quantization", [None, "fp8", "int8", "int4", "nvfp4"])
@pytest.mark.parametrize("name", ["llada2-mini", "sdar-8b"])
def test_bits_in_layers_of_a_real_width_do_not_depend_on_the_batch(name, quantization, attn_impl):
    wide = Wide(name, quantization, attn_impl)
    expected = wide.hidden(1, [256])
    assert bool(torch.isfinite(expected).all())
    for count, cuts in ((1, list(range(32, 257, 32))), (2, [96, 256]), (9, [224, 256]), (32, [256]), (64, [32, 256])):
        found = wide.hidden(count, cuts)
        assert torch.equal(found, expected), (count, cuts, int((found != expected).any(1).sum()))


class WideCanvas:
    """Two layers of DiffusionGemma with the real width, and their hidden states in batches of different sizes."""

    def __init__(self, quantization: str | None, device: str = "cuda", **smaller: Any) -> None:
        config = dict(architecture("diffusiongemma-26b-a4b"))
        config["text_config"] = dict(config["text_config"]) | {
            "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "vocab_size": 1024,
            "sliding_window": 64, "num_experts": 32,
        } | smaller  # fmt: skip
        self.model = random_model(
            config, LayerFactory.create(device, torch.bfloat16, None, quantization, deterministic=True)
        )
        generator = torch.Generator().manual_seed(1)
        self.ids = [torch.randint(2, 1000, (256,), generator=generator).tolist() for _ in range(16)]
        self.signal = torch.randn(16, CANVAS, self.model.self_conditioning_size, generator=generator).to(
            device, torch.bfloat16
        )
        self.device = device

    def hidden(self, count: int, cuts: list[int]) -> torch.Tensor:
        """Returns hidden states as `Wide.hidden`. An open canvas begins at `BEFORE` and is never split."""
        tables, pages = page_tables([256] * count, 32, torch.Generator().manual_seed(count))
        pool = UnifiedPool(
            self.model.kv_shapes, num_pages=pages + 1, page_size=32, dtype=torch.bfloat16, device=self.device
        )
        found, first = [], 0
        for end in cuts:
            rows = [(ids, first, end) for ids in self.ids[:count]]
            batch = make_batch(rows, tables.to(self.device), block_size=1, page_size=32)
            at = batch.positions
            opened = at >= BEFORE
            signal = self.signal.new_zeros(len(at), self.signal.shape[2])
            if end == 256:
                signal[opened] = self.signal[:count].flatten(0, 1)
            batch = replace(
                batch, is_editable=opened, self_conditioning=signal, max_seq_len=256,
                visible_end=torch.where(opened, 256, batch.visible_end), window_pos=at.clamp(max=BEFORE),
            )  # fmt: skip
            left = self.model.forward(self.model.embed(batch.tokens), batch, pool)
            found.append(self.model.final_hidden_states(left)[: end - first])
            first = end
        return torch.cat(found)


@pytest.mark.parametrize("quantization", [None, "fp8", "int8", "int4", "nvfp4"])
def test_bits_in_a_canvas_of_diffusion_gemma_of_a_real_width_do_not_depend_on_the_batch(quantization):
    wide = WideCanvas(quantization)
    expected = wide.hidden(1, [256])
    assert bool(torch.isfinite(expected).all())
    for count, cuts in ((1, [32, 64, BEFORE, 256]), (2, [96, 256]), (5, [BEFORE, 256]), (16, [32, 256])):
        found = wide.hidden(count, cuts)
        assert torch.equal(found, expected), (count, cuts, int((found != expected).any(1).sum()))
