"""Tests of the KV pool: every layer has its own pages of its own shape, in each layout."""

import pytest
import torch

from runtime.kernels.paged_attention import read_keys, read_slots
from runtime.kernels.rotary_and_cache import write_kv_reference
from runtime.layers.kv_pool import LAYOUTS, DistinctPool, KVShape, UnifiedPool

SHAPES = [KVShape(4, 16, 16, window=8), KVShape(2, 32, 24), KVShape(4, 16, 16), KVShape(2, 32, 24, window=3)]
layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))


@layouts
def test_layers_of_several_shapes_have_the_same_page_ids(layout):
    pool = layout(SHAPES, num_pages=5, page_size=4, dtype=torch.float32, device="cpu")
    assert pool.nbytes == 5 * layout.page_bytes(SHAPES, 4, torch.float32)
    assert len(pool.tensors) == 4, "layers that differ only in their window share a tensor"
    for index, shape in enumerate(SHAPES):
        kv = pool.layer(index)
        assert kv.k.flatten(3).shape == (5, 4, shape.heads, shape.k_dim)
        assert kv.v.shape == (5, 4, shape.heads, shape.v_dim)
        assert not kv.k.any()
        assert not kv.v.any()
        kv.k.fill_(index + 1)
        kv.v.fill_(-index - 1)
    for index in range(len(SHAPES)):
        assert bool((pool.layer(index).k == index + 1).all())
        assert bool((pool.layer(index).v == -index - 1).all())


@layouts
def test_like_returns_another_pool_of_the_same_kind(layout):
    pool = layout(SHAPES, num_pages=5, page_size=4, dtype=torch.float64, device="cpu")
    pool.layer(1).k.fill_(1)
    other = pool.like(2)
    assert type(other) is layout
    assert (other.num_pages, other.page_size, other.dtype, other.device) == (2, 4, torch.float64, pool.device)
    assert other.nbytes == 2 * layout.page_bytes(SHAPES, 4, torch.float64)
    assert not other.layer(1).k.any()
    other.layer(0).v.fill_(2)
    assert not pool.layer(0).v.any()


def test_memory_layouts():
    shape = KVShape(3, 20, 12)
    pools = [
        layout([shape], num_pages=5, page_size=4, dtype=torch.float64, device="cpu")
        for layout in (UnifiedPool, DistinctPool)
    ]
    k, v = torch.randn(20, 3, 20, dtype=torch.float64), torch.randn(20, 3, 12, dtype=torch.float64)
    slots = torch.randperm(20)
    for pool in pools:
        write_kv_reference(k, v, slots, *pool.layer(0))
        assert torch.equal(read_keys(pool.layer(0).k, slots, 20), k)
        assert torch.equal(read_slots(pool.layer(0).v, slots), v)
    (one_k, one_v), (cut_k, turned_v) = (pool.tensors for pool in pools)
    assert one_k.shape == (1, 5, 4, 3, 20)
    assert cut_k.shape == (1, 5, 3, 3, 4, 8), "20 numbers are three pieces of 8"
    assert turned_v.shape == (1, 5, 3, 12, 4)
    for p, t, h, d in [(0, 0, 0, 0), (4, 3, 2, 19), (2, 1, 1, 8), (1, 2, 0, 7)]:
        assert one_k[0, p, t, h, d] == cut_k[0, p, h, d // 8, t, d % 8] != 0
    for p, t, h, d in [(0, 0, 0, 0), (4, 3, 2, 11), (2, 1, 1, 8)]:
        assert one_v[0, p, t, h, d] == turned_v[0, p, h, d, t] != 0
