"""Defines the sizes to which steps are padded, so that few CUDA graphs cover all steps."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property

from runtime.kernels.forward_batch import MAX_TILE_ROWS
from runtime.worker.input_batch import AlgorithmShape, ForwardDescriptor, SampleDescriptor

MIN_PREFILL_FILL = 15 / 16  # a step is padded to the prefill size only if it fills at least this fraction of it
SAMPLED_ROWS_MULTIPLE = 16  # sampled rows are padded to a multiple of this,
SAMPLED_ROWS_STEPS = 8  # and of this fraction of the positions of their blocks
MIN_HISTORY_LEN = 8  # smallest padded history of an algorithm


def capture_batch_sizes(max_size: int) -> list[int]:
    """Returns 1, 2, 3, 4, 6, 8, ... 16, 20, ... 32, 40, ... up to `max_size`. Padding stays below 50 %."""
    found, step = [1, 2, 3, 4], 2
    while found[-1] < max_size:
        found.append(found[-1] + step)
        if found[-1] >= 8 * step:
            step *= 2
    return [*found[: bisect_left(found, max_size)], max_size]


@dataclass(frozen=True)
class CaptureSizes:
    """Computes the padded descriptors of forwards and of sampling.

    Attributes:
        block_size: positions per block.
        pages: width of the page table.
        page_size: tokens per page.
        max_tokens: rows of the largest forward that is padded block by block.
        max_num_reqs: maximum number of requests per step.
        max_sampled_blocks: maximum number of blocks that a step samples. None: as many as its rows hold.
        lora_modules: modules that the adapters loaded at start may change (``ForwardBatch.adapted``).
        eager_lora_modules: modules that prevent capture if adapters change them.
        max_prefill_tokens: one additional size for full prefill steps; sizes between `max_tokens` and
            `MIN_PREFILL_FILL` of it run eagerly. 0: none.
    """

    block_size: int
    pages: int
    page_size: int
    max_tokens: int
    max_num_reqs: int
    max_sampled_blocks: int | None = None
    lora_modules: int = 0
    eager_lora_modules: int = 0
    max_prefill_tokens: int = 0

    @cached_property
    def blocks(self) -> list[int]:
        """Sizes of forwards, in blocks."""
        return capture_batch_sizes(max(self.max_tokens // self.block_size, 1))

    @cached_property
    def sampled_blocks(self) -> list[int]:
        """Padded numbers of blocks that a step may sample."""
        max_blocks = (
            self.blocks[-1] if self.max_sampled_blocks is None else min(self.max_sampled_blocks, self.blocks[-1])
        )
        return [n for n in self.blocks if n <= self._round_up(max_blocks)]

    @cached_property
    def tiles(self) -> list[int]:
        """Tile heights: for steps that denoise one block per request, that also commit one, and for all others."""
        return sorted({min(rows, MAX_TILE_ROWS) for rows in (self.block_size, 2 * self.block_size, MAX_TILE_ROWS)})

    def forward_descriptors(self, *, self_conditioning: bool) -> list[ForwardDescriptor]:
        """Returns all descriptors without soft embeddings, largest first."""
        shapes = [
            self._forward(self.max_prefill_tokens // self.block_size, tile, self_conditioning=self_conditioning)
            for tile in reversed(self._prefill_tiles)
        ]
        shapes += [
            self._forward(n, tile, self_conditioning=self_conditioning)
            for n in reversed(self.blocks)
            for tile in reversed(self.tiles)
            if n <= self._max_blocks(tile)
        ]
        if not self.lora_modules or self.lora_modules & self.eager_lora_modules:
            return shapes
        return [replace(shape, active_lora_modules=adapted) for shape in shapes for adapted in (self.lora_modules, 0)]

    def pad_forward(self, shape: ForwardDescriptor, *, self_conditioning: bool) -> ForwardDescriptor | None:
        """Returns the padded descriptor of a forward; None if the step has to run eagerly."""
        if shape.active_lora_modules & self.eager_lora_modules:
            return None
        for padded in self._candidates(shape, self_conditioning=self_conditioning):
            if not _fits(padded, shape):
                continue
            if shape.soft_embedding_shape[0]:
                padded = replace(padded, soft_embedding_shape=(padded.rows, shape.soft_embedding_shape[1]))
            return (
                replace(padded, active_lora_modules=shape.active_lora_modules) if shape.active_lora_modules else padded
            )
        return None

    def _candidates(self, shape: ForwardDescriptor, *, self_conditioning: bool) -> Iterator[ForwardDescriptor]:
        """Yields descriptors with enough rows, best fit first."""
        if shape.rows > self.blocks[-1] * self.block_size:
            if (
                self.max_prefill_tokens * MIN_PREFILL_FILL
                <= shape.rows
                <= self.max_prefill_tokens // self.block_size * self.block_size
            ):
                for tile in self._prefill_tiles[bisect_left(self._prefill_tiles, shape.tile_rows) :]:
                    yield self._forward(
                        self.max_prefill_tokens // self.block_size, tile, self_conditioning=self_conditioning
                    )
            return
        enough = self.blocks[bisect_left(self.blocks, -(-shape.rows // self.block_size)) :]
        for tile in self.tiles[bisect_left(self.tiles, shape.tile_rows) :]:
            for n in enough[: bisect_right(enough, self._max_blocks(tile))]:
                yield self._forward(n, tile, self_conditioning=self_conditioning)

    @cached_property
    def _prefill_tiles(self) -> list[int]:
        """Tile heights of the prefill size: the full tile, and smaller ones if all requests together fill the rows."""
        rows = self.max_prefill_tokens // self.block_size * self.block_size
        return [tile for tile in self.tiles if rows and (tile == MAX_TILE_ROWS or rows <= self.max_num_reqs * tile)]

    def _max_blocks(self, tile_rows: int) -> int:
        """Returns the largest number of blocks for a tile height. With one tile per request, the number of requests
        limits it."""
        if tile_rows == MAX_TILE_ROWS:
            return self.blocks[-1]
        return self._round_up(min(-(-self.max_num_reqs * tile_rows // self.block_size), self.blocks[-1]))

    def _max_tiles(self, blocks: int, tile_rows: int) -> int:
        """Returns the maximum number of tiles: the last tile of each request may be partial. The bound is tight because
        each tile launches one attention program per head, even without rows."""
        pieces = -(-self.block_size // tile_rows)
        return min(blocks * pieces, self.max_num_reqs + blocks * self.block_size // tile_rows) + 1

    @cache  # noqa: B019  # there is one for the process's life
    def _forward(self, blocks: int, tile: int, *, self_conditioning: bool) -> ForwardDescriptor:
        return ForwardDescriptor(
            rows=blocks * self.block_size,
            tiles=self._max_tiles(blocks, tile),
            requests=min(blocks, self.max_num_reqs) + 1,
            pages=self.pages,
            tile_rows=tile,
            reach=self.pages * self.page_size,
            num_self_conditioned=blocks if self_conditioning else 0,
        )

    def pad_sample(
        self, shape: SampleDescriptor, *, uniform_noise: bool, self_conditioned: bool
    ) -> SampleDescriptor | None:
        """Returns the padded descriptor of sampling, with at least one padding block; None if there are too many."""
        if shape.blocks > self.blocks[-1]:
            return None
        size = (
            -(-shape.size // self.block_size) * self.block_size
        )  # where requests choose their blocks they may be larger
        return SampleDescriptor(
            blocks=self._round_up(shape.blocks) + 1,
            size=size,
            groups=tuple(self.pad_group(group, size) for group in shape.groups),
            remasked=True,
            uniform_noise=uniform_noise,
            self_conditioned=self_conditioned,
        )

    def pad_group(self, shape: AlgorithmShape, size: int) -> AlgorithmShape:
        blocks = self._round_up(shape.blocks)
        positions = blocks * size
        num_filtered = pad_sampled_rows(shape.num_filtered, positions)
        num_sampled = num_filtered + pad_sampled_rows(shape.num_sampled - shape.num_filtered, positions)
        return replace(
            shape,
            blocks=blocks + 1,
            rows=num_sampled + pad_sampled_rows(shape.rows - shape.num_sampled, positions),
            num_sampled=num_sampled,
            num_filtered=num_filtered,
            history_len=padded_history_len(shape.history_len, static=shape.static_history),
        )

    def _round_up(self, blocks: int) -> int:
        return self.blocks[bisect_left(self.blocks, blocks)]


def _fits(padded: ForwardDescriptor, shape: ForwardDescriptor) -> bool:
    """Whether a forward and the tiles of its padding tokens fit the padded descriptor."""
    tiles = shape.tiles + -(-(padded.rows - shape.rows) // padded.tile_rows)
    return (
        tiles <= padded.tiles
        and shape.requests <= padded.requests
        and shape.num_self_conditioned <= padded.num_self_conditioned
    )


def padded_history_len(history_len: int, *, static: bool) -> int:
    """Returns the padded number of history records per position."""
    return history_len if static or not history_len else max(MIN_HISTORY_LEN, 1 << (history_len - 1).bit_length())


def pad_sampled_rows(rows: int, positions: int) -> int:
    """Returns the padded number of sampled rows out of `positions` positions."""
    step = sampled_rows_step(positions)
    return -(-rows // step) * step


def sampled_rows_step(positions: int) -> int:
    return -(-max(positions // SAMPLED_ROWS_STEPS, 1) // SAMPLED_ROWS_MULTIPLE) * SAMPLED_ROWS_MULTIPLE
