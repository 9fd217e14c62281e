"""Which tile a dense layer's first product has, by what was measured on an H200 of 132 multiprocessors."""

import pytest

from runtime.kernels.gated_product import tile_for

SDAR, DREAM, GEMMA = 24576, 37888, 4224  # rows of the weights


@pytest.mark.parametrize(
    ("rows", "outputs", "expected"),
    [
        *((rows, SDAR, (height, 192)) for rows, height in ((1, 32), (64, 64), (128, 128), (250, 256), (1024, 256))),
        (32, DREAM, (32, 192)), (512, DREAM, (256, 192)), (2048, DREAM, (256, 192)),
        (32, GEMMA, (32, 64)), (512, GEMMA, (256, 64)), (2048, GEMMA, (256, 128)), (8192, GEMMA, (256, 128)),
    ],
)  # fmt: skip
def test_tiles(rows, outputs, expected):
    tile = tile_for(rows, outputs, 132)
    assert tile is not None
    assert (tile.rows, tile.columns + tile.more) == expected


@pytest.mark.parametrize(("rows", "outputs"), [(128, DREAM), (256, DREAM), (256, GEMMA), (300, SDAR), (140, SDAR)])
def test_the_library_where_programs_would_wait(rows, outputs):
    """A last round of few programs, or rows that do not fill a tile."""
    assert tile_for(rows, outputs, 132) is None
