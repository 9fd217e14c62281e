"""The sizes that steps are filled up to, so that few shapes stand for all of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property

from runtime.kernels.forward_batch import TILE_ROWS
from runtime.worker.input_batch import ForwardShape, GroupShape, SampleShape

WHOLE = 15 / 16  # of a whole step's rows, from which on a step is filled up to it
SAMPLED = 16  # sampled rows come in multiples of it,
EIGHTHS = 8  # and of an eighth of their blocks' positions
RECORDS = 8  # the least room for what a rule remembers


def stairs(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, ... 16, 20, ... 32, 40, ...: never half as much again as is needed, and mostly far less."""
    found, step = [1, 2, 3, 4], 2
    while found[-1] < most:
        found.append(found[-1] + step)
        if found[-1] >= 8 * step:
            step *= 2
    return [*found[: bisect_left(found, most)], most]


@dataclass(frozen=True)
class Sizes:
    """Args:
    block: positions of a block. pages: width of a page table. page_size: of a page. most_rows: of a forward that is
    filled up. sampled: most blocks that a step samples; None: as many as its rows hold. places: see DeviceStep; no step
    has more requests.
    adapted: what the adapters that are there from the start may change (``ForwardBatch.adapted``). apart: what makes a
    step one that cannot be recorded where adapters change it. whole: rows of a server's largest step, where these are
    more than `most_rows`: prompts fill it, and what lies between the two, up to `WHOLE` of it, is launched anew. 0:
    there is none such.
    """

    block: int
    pages: int
    page_size: int
    most_rows: int
    places: int
    sampled: int | None = None
    adapted: int = 0
    apart: int = 0
    whole: int = 0

    @cached_property
    def blocks(self) -> list[int]:
        """Numbers of blocks: a forward's rows are so many times a block's."""
        return stairs(max(self.most_rows // self.block, 1))

    @cached_property
    def sampled_blocks(self) -> list[int]:
        """Those of them that a step may sample, filled up."""
        most = self.blocks[-1] if self.sampled is None else min(self.sampled, self.blocks[-1])
        return [n for n in self.blocks if n <= self._up(most)]

    @cached_property
    def tiles(self) -> list[int]:
        """Most rows of a tile: of those that denoise a block, that commit one as well, and of all others."""
        return sorted({min(rows, TILE_ROWS) for rows in (self.block, 2 * self.block, TILE_ROWS)})

    def forwards(self, *, told: bool) -> list[ForwardShape]:
        """All shapes without mixtures, the largest first. `told`: the model conditions itself."""
        plain = [self._forward(self.whole // self.block, tile, told=told) for tile in reversed(self._whole_tiles)]
        plain += [
            self._forward(n, tile, told=told)
            for n in reversed(self.blocks)
            for tile in reversed(self.tiles)
            if n <= self._most(tile)
        ]
        if not self.adapted or self.adapted & self.apart:
            return plain
        return [replace(shape, adapted=adapted) for shape in plain for adapted in (self.adapted, 0)]

    def forward(self, shape: ForwardShape, *, told: bool) -> ForwardShape | None:
        """What a forward is filled up to; None if it is too large."""
        if shape.adapted & self.apart:
            return None
        for padded in self._candidates(shape, told=told):
            if not _holds(padded, shape):
                continue
            if shape.merged[0]:
                padded = replace(padded, merged=(padded.rows, shape.merged[1]))
            return replace(padded, adapted=shape.adapted) if shape.adapted else padded
        return None

    def _candidates(self, shape: ForwardShape, *, told: bool) -> Iterator[ForwardShape]:
        """Shapes of enough rows, the best first."""
        if shape.rows > self.blocks[-1] * self.block:
            if self.whole * WHOLE <= shape.rows <= self.whole // self.block * self.block:
                for tile in self._whole_tiles[bisect_left(self._whole_tiles, shape.tile_rows) :]:
                    yield self._forward(self.whole // self.block, tile, told=told)
            return
        enough = self.blocks[bisect_left(self.blocks, -(-shape.rows // self.block)) :]
        for tile in self.tiles[bisect_left(self.tiles, shape.tile_rows) :]:
            for n in enough[: bisect_right(enough, self._most(tile))]:
                yield self._forward(n, tile, told=told)

    @cached_property
    def _whole_tiles(self) -> list[int]:
        """Tiles of a whole step: those of prompts, and others where all requests' together are as many rows."""
        rows = self.whole // self.block * self.block
        return [tile for tile in self.tiles if rows and (tile == TILE_ROWS or rows <= self.places * tile)]

    def _most(self, tile: int) -> int:
        """Blocks of the largest forward in tiles of so many rows. Where a tile is a whole request's, all of them
        together hold no more than this."""
        if tile == TILE_ROWS:
            return self.blocks[-1]
        return self._up(min(-(-self.places * tile // self.block), self.blocks[-1]))

    def _tiles(self, blocks: int, tile: int) -> int:
        """Most tiles of so many blocks: each request may end in one that it does not fill. A tile costs a program of
        attention's for each of its heads whether or not it has rows."""
        pieces = -(-self.block // tile)
        return min(blocks * pieces, self.places + blocks * self.block // tile) + 1

    @cache  # noqa: B019  # there is one for the process's life
    def _forward(self, blocks: int, tile: int, *, told: bool) -> ForwardShape:
        return ForwardShape(
            rows=blocks * self.block,
            tiles=self._tiles(blocks, tile),
            requests=min(blocks, self.places) + 1,
            pages=self.pages,
            tile_rows=tile,
            reach=self.pages * self.page_size,
            told=blocks if told else 0,
        )

    def sample(self, shape: SampleShape, *, noise: bool, placed: bool) -> SampleShape | None:
        """What the blocks of a step are filled up to, one dead block more at least; None if they are too many."""
        if shape.blocks > self.blocks[-1]:
            return None
        size = -(-shape.size // self.block) * self.block  # where requests choose their blocks they may be larger
        return SampleShape(
            blocks=self._up(shape.blocks) + 1,
            size=size,
            groups=tuple(self.group(group, size) for group in shape.groups),
            remasked=True,
            noise=noise,
            placed=placed,
        )

    def group(self, shape: GroupShape, size: int) -> GroupShape:
        blocks = self._up(shape.blocks)
        positions = blocks * size
        limited = sampled_up(shape.limited, positions)
        drawn = limited + sampled_up(shape.drawn - shape.limited, positions)
        return replace(
            shape,
            blocks=blocks + 1,
            rows=drawn + sampled_up(shape.rows - shape.drawn, positions),
            drawn=drawn,
            limited=limited,
            records=room_for(shape.records, once=shape.once),
        )

    def _up(self, blocks: int) -> int:
        return self.blocks[bisect_left(self.blocks, blocks)]


def _holds(padded: ForwardShape, shape: ForwardShape) -> bool:
    """Whether a forward has room in a larger one, with its dead rows' tiles."""
    tiles = shape.tiles + -(-(padded.rows - shape.rows) // padded.tile_rows)
    return tiles <= padded.tiles and shape.requests <= padded.requests and shape.told <= padded.told


def room_for(records: int, *, once: bool) -> int:
    """So many records of a rule, filled up."""
    return records if once or not records else max(RECORDS, 1 << (records - 1).bit_length())


def sampled_up(rows: int, positions: int) -> int:
    """So many sampled rows of so many positions, filled up."""
    step = sampled_step(positions)
    return -(-rows // step) * step


def sampled_step(positions: int) -> int:
    return -(-max(positions // EIGHTHS, 1) // SAMPLED) * SAMPLED
