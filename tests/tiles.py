"""Query tiles of a forward, for tests that make a `ForwardBatch` of their own."""

import numpy as np
import numpy.typing as npt

from runtime.kernels.forward_batch import MAX_TILE_ROWS


def make_query_tiles(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Splits consecutive runs of rows into tiles of at most `MAX_TILE_ROWS` rows.

    Args:
        counts: number of rows of each request, in batch order.

    Returns:
        int32 [tiles, 3], see ``ForwardBatch.query_tiles``.
    """
    starts = np.cumsum(counts) - counts
    if counts.max() <= MAX_TILE_ROWS:
        tiles = np.empty((len(counts), 3), dtype=np.int32)  # faster than np.stack; every step runs this
        tiles[:, 0], tiles[:, 1], tiles[:, 2] = np.arange(len(counts)), starts, counts
        return tiles
    pieces = -(-counts // MAX_TILE_ROWS)
    request = np.repeat(np.arange(len(counts)), pieces)
    done = (np.arange(len(request)) - (np.cumsum(pieces) - pieces)[request]) * MAX_TILE_ROWS
    rows = np.minimum(counts[request] - done, MAX_TILE_ROWS)
    return np.stack([request, starts[request] + done, rows], axis=1).astype(np.int32)
