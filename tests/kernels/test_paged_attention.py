"""Tests of the number of query tiles per pass in two-pass attention."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from runtime.kernels.paged_attention import MAX_WORKSPACE, SCORES_CONFIG, _tiles_per_pass


def make_batch(
    tiles: int, tile_rows: int = 256, keys: int = 1024, heads: int = 16, dim: int = 512, dtype=torch.bfloat16
):
    """Returns queries, and a batch that has only shapes, with pages of 32."""
    q = torch.empty(tiles * tile_rows, heads, dim, dtype=dtype, device="meta")
    batch = {"query_tiles": torch.empty(tiles, 3), "page_table": torch.empty(tiles, keys // 32)}
    return q, SimpleNamespace(**batch, page_size=32, tile_rows=tile_rows)


@pytest.mark.parametrize(("tiles", "keys"), [(1, 100), (9, 1024), (33, 1024), (33, 8192), (40, 32768), (2, 1 << 20)])
def test_workspace_of_a_pass_is_bounded(tiles, keys):
    q, batch = make_batch(tiles, keys=keys)
    together, programs = _tiles_per_pass(q, 2, batch, SCORES_CONFIG)
    assert programs == 32
    rounded = -(-keys // 32 * 32 // SCORES_CONFIG.keys) * SCORES_CONFIG.keys
    assert together * programs * SCORES_CONFIG.block_m * rounded * 2 <= MAX_WORKSPACE
    assert together or keys == 1 << 20
    if together:
        assert together == -(-tiles // -(-tiles // together)), "the tiles are not divided evenly between the passes"
