"""Tests of the query tiles of a forward."""

import numpy as np

from runtime.kernels.forward_batch import MAX_TILE_ROWS, make_query_tiles


def test_tiles_are_runs_of_one_request_in_order():
    counts = np.array([3, 2 * MAX_TILE_ROWS + 1, 1, MAX_TILE_ROWS])
    tiles = make_query_tiles(counts).tolist()
    assert tiles == [
        [0, 0, 3],
        [1, 3, MAX_TILE_ROWS],
        [1, 3 + MAX_TILE_ROWS, MAX_TILE_ROWS],
        [1, 3 + 2 * MAX_TILE_ROWS, 1],
        [2, 4 + 2 * MAX_TILE_ROWS, 1],
        [3, 5 + 2 * MAX_TILE_ROWS, MAX_TILE_ROWS],
    ]
