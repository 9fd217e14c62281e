"""Tests of the torch attention against a reference per sequence, with random batches, pages and windows."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import ConfigError
from runtime.kernels.paged_attention import paged_attention_reference
from runtime.layers import attention
from runtime.layers.attention import AttentionShape, TorchAttention, attention_names, make_attention
from runtime.layers.kv_pool import LAYOUTS, KVShape, LayerKV
from runtime.layers.layer_factory import LayerFactory
from tests.examples import examples
from tests.kernels.cases import attention_case, with_any_sight

SIZES = [1, 2, 4, 8, 16, 32]


def compare(runs, heads, kv_heads, block_size, page_size, window, dtype=torch.float64, seed=0, dim=8, layout="unified"):
    q, k, v, batch = attention_case(
        runs, heads, kv_heads, dim, block_size, page_size, dtype, "cpu", seed, layout=layout
    )
    attention = TorchAttention(AttentionShape(heads, kv_heads, dim, 0.3), dtype)
    out = attention.prepare_metadata(batch, window).run(q, LayerKV(k, v))
    expected = paged_attention_reference(q.double(), k.double(), v.double(), batch, scale=0.3, window=window)
    tolerance = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@examples(120)
@given(
    runs=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 70)), min_size=1, max_size=12),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 1), (3, 3)]), block_size=st.sampled_from(SIZES),
    page_size=st.sampled_from(SIZES), window=st.sampled_from([None, 1, 3, 17, 64]), seed=st.integers(0, 9),
    dim=st.sampled_from([4, 8, 20, 64]), layout=st.sampled_from(list(LAYOUTS)),
)  # fmt: skip
def test_equals_the_reference(runs, heads, block_size, page_size, window, seed, dim, layout):
    compare(runs, *heads, block_size, page_size, window, seed=seed, dim=dim, layout=layout)


@examples(80)
@given(
    runs=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=5),
    page_size=st.sampled_from([1, 4, 32]),
    window=st.sampled_from([None, 1, 5, 40]),
    seed=st.integers(0, 9),
    layout=st.sampled_from(list(LAYOUTS)),
)
def test_each_row_attends_to_its_visible_keys(runs, page_size, window, seed, layout):
    q, k, v, batch = attention_case(runs, 2, 1, 8, 1, page_size, torch.float64, "cpu", seed, layout=layout)
    batch = with_any_sight(batch, [cached + new for cached, new in runs], seed)
    q = torch.cat([q, torch.full_like(q[:2], float("nan"))])
    attention = TorchAttention(AttentionShape(2, 1, 8, 0.5), torch.float64)
    out = attention.prepare_metadata(batch, window).run(q, LayerKV(k, v))
    reference = paged_attention_reference(q, k, v, batch, scale=0.5, window=window)
    row = 0
    for request, (_, new) in enumerate(runs):
        for _ in range(new):
            end, origin = int(batch.visible_end[row]), int(batch.window_pos[row])
            seen = [key for key in range(end) if window is None or origin - key < window]
            slots = [(int(batch.page_table[request, key // page_size]), key % page_size) for key in seen]
            keys = torch.stack([k[slot].flatten() for slot in slots])
            weights = (torch.einsum("hd,kd->hk", q[row], keys) * 0.5).softmax(-1)
            expected = weights @ torch.stack([v[slot].flatten() for slot in slots])
            torch.testing.assert_close(out[row], expected, rtol=1e-11, atol=1e-11)
            torch.testing.assert_close(reference[row], expected, rtol=1e-11, atol=1e-11)
            row += 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_dtypes(dtype):
    compare([(64, 8), (0, 100), (12, 3)], 4, 2, 8, 16, None, dtype)


@pytest.mark.parametrize("window", [None, 5, 200])
def test_long_prompts_are_cut_into_tiles(window):
    compare([(96, 700), (0, 300), (64, 32)], 2, 1, 32, 16, window)


def test_like_sequences_are_one_group_and_padding_is_bounded():
    shape = AttentionShape(2, 1, 8, 1.0)

    def groups(runs):
        *_, batch = attention_case(runs, 2, 1, 8, 8, 8, torch.float32, "cpu")
        return TorchAttention(shape, torch.float32).prepare_metadata(batch).groups

    assert len(groups([(104, 8)] * 32)) == 1
    assert groups([(104, 8)] * 32)[0].mask is None, "complete blocks at the end of a sequence need no mask"
    mixed = [(8 * (n % 13), 8) for n in range(32)] + [(0, 250)]
    plans = groups(mixed)
    padded = sum(g.rows.numel() * g.slots.shape[1] for g in plans)
    needed = sum(new * (cached + new) for cached, new in mixed)
    assert padded <= attention.PADDING_LIMIT * needed
    assert len(plans) < 10
    assert sorted(torch.cat([g.output_rows for g in plans]).tolist()) == list(range(32 * 8 + 250))


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_keys_that_no_window_reaches_are_not_read(layout):
    """The windows of a canvas of 8 rows begin at its first position. K/V before them is NaN and must not be read."""
    q, k, v, batch = attention_case([(40, 8), (3, 8)], 2, 1, 8, 8, 8, torch.float64, "cpu", layout=layout)
    batch = replace(batch, window_pos=torch.tensor([40] * 8 + [3] * 8))
    attention = TorchAttention(AttentionShape(2, 1, 8, 0.5), torch.float64)
    expected = attention.prepare_metadata(batch, 6).run(q, LayerKV(k, v))
    reference = paged_attention_reference(q, k, v, batch, scale=0.5, window=6)
    torch.testing.assert_close(expected, reference, rtol=1e-11, atol=1e-11)
    for position in range(35):
        slot = int(batch.page_table[0, position // 8]), position % 8
        k[slot] = v[slot] = float("nan")
    assert torch.equal(attention.prepare_metadata(batch, 6).run(q, LayerKV(k, v)), expected)
    assert attention.prepare_metadata(batch, 7).run(q, LayerKV(k, v)).isnan().any()


def test_layers_of_several_shapes_and_windows_are_in_one_batch():
    shapes = [KVShape(2, 8, 8, window=5), KVShape(1, 20, 20), KVShape(4, 16, 16, window=17)]
    random = torch.Generator().manual_seed(2)
    *_, batch = attention_case([(40, 8), (0, 21)], 4, 1, 8, 4, 8, torch.float64, "cpu")
    pages = int(batch.page_table.max()) + 1
    for layout in LAYOUTS.values():
        pool = layout(shapes, num_pages=pages, page_size=8, dtype=torch.float64, device="cpu")
        for index, shape in enumerate(shapes):
            kv = pool.layer(index)
            for tensor in kv:
                tensor.copy_(torch.randn(tensor.shape, generator=random))
            q = torch.randn(len(batch.tokens), 4, shape.k_dim, generator=random, dtype=torch.float64)
            attention = TorchAttention(AttentionShape(4, shape.heads, shape.k_dim, 0.5), torch.float64)
            out = attention.prepare_metadata(batch, shape.window).run(q, kv)
            expected = paged_attention_reference(q, *kv, batch, scale=0.5, window=shape.window)
            torch.testing.assert_close(out, expected, rtol=1e-11, atol=1e-11)


def test_a_sequence_with_nan_keys_harms_no_other():
    q, k, v, batch = attention_case([(40, 8), (24, 8), (37, 8)], 2, 1, 8, 8, 8, torch.float32, "cpu")
    attention = TorchAttention(AttentionShape(2, 1, 8, 1.0), torch.float32)
    plan = attention.prepare_metadata(batch)
    healthy = plan.run(q, LayerKV(k, v))
    page = int(batch.page_table[1, 0])
    k[page] = v[page] = float("nan")
    harmed = plan.run(q, LayerKV(k, v))
    assert torch.equal(harmed[:8], healthy[:8])
    assert torch.equal(harmed[16:], healthy[16:])
    assert harmed[8:16].isnan().all()


def test_registry():
    shape = AttentionShape(2, 1, 8, 1.0)
    assert attention_names() == ["triton_grouped", "triton", "torch", "naive"]
    assert isinstance(make_attention(shape, LayerFactory.create("cpu", torch.float32, "naive")), TorchAttention)
    with pytest.raises(ConfigError, match="triton needs a CUDA device"):
        make_attention(shape, LayerFactory.create("cpu", torch.float32, "triton"))
    with pytest.raises(ConfigError, match="triton_grouped does not compute in float64"):
        make_attention(shape, LayerFactory.create("cuda", torch.float64))
    with pytest.raises(ConfigError, match=r"flash.*known: triton_grouped"):
        make_attention(shape, LayerFactory.create("cpu", torch.float32, "flash"))
