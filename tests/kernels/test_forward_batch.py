"""Tiles: how rows of a forward are cut."""

import numpy as np

from runtime.kernels.forward_batch import TILE_ROWS, cut_tiles


def test_tiles_are_runs_of_one_request_in_order():
    counts = np.array([3, 2 * TILE_ROWS + 1, 1, TILE_ROWS])
    tiles = cut_tiles(counts).tolist()
    assert tiles == [
        [0, 0, 3],
        [1, 3, TILE_ROWS],
        [1, 3 + TILE_ROWS, TILE_ROWS],
        [1, 3 + 2 * TILE_ROWS, 1],
        [2, 4 + 2 * TILE_ROWS, 1],
        [3, 5 + 2 * TILE_ROWS, TILE_ROWS],
    ]
