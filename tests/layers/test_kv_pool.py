"""The pool of keys and values: every layer has its own pages of its own shape."""

import torch

from runtime.layers.kv_pool import KVShape, UnifiedPool, page_bytes


def test_layers_of_several_shapes_share_page_ids():
    shapes = [KVShape(4, 16, 16, window=8), KVShape(2, 32, 24), KVShape(4, 16, 16), KVShape(2, 32, 24, window=3)]
    pool = UnifiedPool(shapes, num_pages=5, page_size=4, dtype=torch.float32, device="cpu")
    assert pool.nbytes == 5 * page_bytes(shapes, 4, torch.float32)
    assert len(pool.tensors) == 4, "layers that differ in their window alone lie side by side"
    for index, shape in enumerate(shapes):
        kv = pool.layer(index)
        assert kv.k.shape == (5, 4, shape.heads, shape.k_dim)
        assert kv.v.shape == (5, 4, shape.heads, shape.v_dim)
        assert not kv.k.any()
        assert not kv.v.any()
        kv.k.fill_(index + 1)
        kv.v.fill_(-index - 1)
    for index in range(len(shapes)):
        assert bool((pool.layer(index).k == index + 1).all())
        assert bool((pool.layer(index).v == -index - 1).all())
