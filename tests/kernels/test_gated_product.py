"""Which tile a dense layer's first product has, by what was measured on an H200 of 132 multiprocessors."""

import pytest

from runtime.kernels.gated_product import tile_for

SDAR, DREAM, GEMMA = 24576, 37888, 4224  # rows of the weights


@pytest.mark.parametrize(
    ("rows", "outputs", "expected"),
    [
        *((rows, SDAR, (height, 192)) for rows, height in ((1, 32), (64, 64), (128, 128), (250, 256), (1024, 256))),
        (32, DREAM, (32, 192)), (512, DREAM, (256, 192)), (2048, DREAM, (256, 192)),
        (32, GEMMA, (32, 64)), (1024, GEMMA, (256, 128)), (2048, GEMMA, (256, 128)), (8192, GEMMA, (256, 128)),
    ],
)  # fmt: skip
def test_tiles(rows, outputs, expected):
    tile = tile_for(rows, outputs, 132)
    assert tile is not None
    assert (tile.rows, tile.columns + tile.more) == expected


@pytest.mark.parametrize(
    ("rows", "outputs"), [(128, DREAM), (256, DREAM), (256, GEMMA), (512, GEMMA), (300, SDAR), (140, SDAR)]
)
def test_the_library_where_programs_would_wait(rows, outputs):
    """A last round of few programs, or rows that do not fill a tile."""
    assert tile_for(rows, outputs, 132) is None


@pytest.mark.parametrize("width", range(256, 20000, 192))
def test_steps_of_powers_of_two_meet_every_tile(width):
    """As those before a server is ready are, so that none is compiled while requests wait."""
    met = {tile_for(1 << n, 2 * width, 132) for n in range(14)}
    assert {tile_for(rows, 2 * width, 132) for rows in range(1, 8193, 7)} - met <= {None}
