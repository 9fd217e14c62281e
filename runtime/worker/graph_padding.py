"""Pads steps to few sizes, so that few CUDA graphs cover all steps.

`CaptureSizes` computes the padded descriptors. The functions after it write the inputs of a step into the input buffers
of its CUDA graph. Padding has no effect on results. A padding token writes no KV and attends to one key, so its output
is finite and unused. A padding block has no positions, and padding rows of sampling belong to it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.algorithms.base import NO_FILTERS
from runtime.kernels.forward_batch import MAX_TILE_ROWS
from runtime.kernels.segments import COUNT, FIELDS, PADDING, REMAINDER, SLOT, START
from runtime.scheduling.step_plan import BLOCK_NUMBERS
from runtime.worker.host_buffers import Arrays, ArraySpecs
from runtime.worker.input_batch import AlgorithmDescriptor, ForwardDescriptor, SampleDescriptor

MIN_LARGE_FILL = 15 / 16  # sizes above `max_tokens` are so dense that a step fills about this fraction of one
# Sampled rows are padded to a multiple of a step: the number of positions of their blocks, divided by
# SAMPLED_ROWS_STEPS and rounded up to a multiple of SAMPLED_ROWS_MULTIPLE.
SAMPLED_ROWS_MULTIPLE = 16
SAMPLED_ROWS_STEPS = 8
SHORT_TILE_ROWS = 64  # tile height for short blocks
MIN_HISTORY_LEN = 8  # smallest padded history of an algorithm

Views = dict[str, npt.NDArray[Any]]

I64, I32, F64 = (np.dtype(kind) for kind in (np.int64, np.int32, np.float64))


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
        max_tokens: rows up to which the sizes are those of `capture_batch_sizes`.
        max_num_reqs: maximum number of requests per step.
        max_sampled_blocks: maximum number of blocks that a step samples. None: as many as its rows hold.
        lora_modules: modules that the adapters loaded at start may change (``ForwardBatch.active_lora_modules``).
        eager_lora_modules: modules that prevent capture if adapters change them.
        self_conditioned: the model uses self-conditioning.
        max_prefill_tokens: rows of the largest forward, if that is more.
        short_blocks: sizes below `block_size` that blocks of requests may have too, ascending multiples of the first.
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
    self_conditioned: bool = False
    short_blocks: tuple[int, ...] = ()

    @property
    def unit(self) -> int:
        """Positions of the smallest block."""
        return self.block_sizes[0]

    @property
    def block_sizes(self) -> tuple[int, ...]:
        return *self.short_blocks, self.block_size

    @cached_property
    def rows(self) -> list[int]:
        """Rows of forwards."""
        sizes, large = capture_batch_sizes(max(self.max_tokens // self.block_size, 1)), []
        size = self.max_prefill_tokens // self.block_size
        while size > sizes[-1]:
            large.append(size)
            size = int(size * MIN_LARGE_FILL)
        return [*self.short_blocks, *(size * self.block_size for size in sizes + large[::-1])]

    @cached_property
    def _sample_sizes(self) -> list[int]:
        """Sizes of sampling, in blocks. A step may sample all its blocks."""
        return capture_batch_sizes(self.rows[-1] // self.unit)

    @cached_property
    def sampled_blocks(self) -> list[int]:
        """Padded numbers of blocks that a step may sample."""
        sizes = self._sample_sizes
        max_blocks = sizes[-1] if self.max_sampled_blocks is None else min(self.max_sampled_blocks, sizes[-1])
        return sizes[: bisect_left(sizes, max_blocks) + 1]

    @cached_property
    def tiles(self) -> list[int]:
        """Tile heights: for steps with one block per request, with two (denoised and committed), with short blocks,
        and for all others."""
        short = min(SHORT_TILE_ROWS, *self.block_sizes[-2:]) if self.short_blocks else self.block_size
        heights = short, self.block_size, 2 * self.block_size, MAX_TILE_ROWS
        return sorted({min(rows, MAX_TILE_ROWS) for rows in heights})

    def forward_descriptors(self) -> list[ForwardDescriptor]:
        """Returns all descriptors without soft embeddings, largest first."""
        descriptors = [
            self._forward(rows, tile)
            for rows in reversed(self.rows)
            for tile in reversed(self.tiles)
            if rows <= self._max_rows(tile)
        ]
        if not self.lora_modules or self.lora_modules & self.eager_lora_modules:
            return descriptors
        adapted = (self.lora_modules, 0)
        return [replace(descriptor, active_lora_modules=modules) for descriptor in descriptors for modules in adapted]

    @lru_cache(maxsize=1024)  # noqa: B019  # few steps have a new descriptor
    def pad_forward(self, descriptor: ForwardDescriptor) -> ForwardDescriptor | None:
        """Returns the padded descriptor of a forward; None if the step has to run eagerly."""
        if descriptor.active_lora_modules & self.eager_lora_modules:
            return None
        for padded in self._candidates(descriptor):
            if not _fits(padded, descriptor):
                continue
            if descriptor.soft_embedding_shape[0]:
                padded = replace(padded, soft_embedding_shape=(padded.rows, descriptor.soft_embedding_shape[1]))
            return replace(padded, active_lora_modules=descriptor.active_lora_modules)
        return None

    def _candidates(self, descriptor: ForwardDescriptor) -> Iterator[ForwardDescriptor]:
        """Yields descriptors with enough rows, best fit first."""
        enough = self.rows[bisect_left(self.rows, descriptor.rows) :]
        for tile in self.tiles[bisect_left(self.tiles, descriptor.tile_rows) :]:
            for rows in enough[: bisect_right(enough, self._max_rows(tile))]:
                yield self._forward(rows, tile)

    def _max_rows(self, tile_rows: int) -> int:
        """Returns the largest number of rows for a tile height. With one tile per request, the number of requests
        limits it."""
        if tile_rows == MAX_TILE_ROWS:
            return self.rows[-1]
        return _round_up(min(self.max_num_reqs * tile_rows, self.rows[-1]), self.rows)

    def _max_tiles(self, rows: int, tile_rows: int) -> int:
        """Returns the maximum number of tiles: the last tile of each request may be partial. The bound is tight because
        each tile launches one attention program per head, even without rows."""
        pieces = -(-self.unit // tile_rows)
        return min(rows // self.unit * pieces, self.max_num_reqs + rows // tile_rows) + 1

    @cache  # noqa: B019  # one instance lives as long as the process
    def _forward(self, rows: int, tile: int) -> ForwardDescriptor:
        return ForwardDescriptor(
            rows=rows,
            tiles=self._max_tiles(rows, tile),
            segments=min(rows // self.unit, self.max_num_reqs) + 1,
            pages=self.pages,
            tile_rows=tile,
            reach=self.pages * self.page_size,
            self_conditioned=self.self_conditioned,
        )

    def pad_sample(self, descriptor: SampleDescriptor) -> SampleDescriptor | None:
        """Returns the padded descriptor of sampling, with at least one padding block; None if there are too many."""
        # A request that sets its block size may have larger blocks.
        larger = -(-descriptor.size // self.block_size) * self.block_size
        size = next((size for size in self.block_sizes if size >= descriptor.size), larger)
        if descriptor.blocks > self.rows[-1] // min(size, self.block_size):
            return None
        return SampleDescriptor(
            blocks=_round_up(descriptor.blocks, self._sample_sizes) + 1,
            size=size,
            groups=tuple(self.pad_group(group, size) for group in descriptor.groups),
            uniform_noise=descriptor.uniform_noise,
            self_conditioned=self.self_conditioned,
        )

    def pad_group(self, descriptor: AlgorithmDescriptor, size: int) -> AlgorithmDescriptor:
        blocks = _round_up(descriptor.blocks, self._sample_sizes)
        positions = blocks * size
        num_filtered = pad_sampled_rows(descriptor.num_filtered, positions)
        num_random = num_filtered + pad_sampled_rows(descriptor.num_random - descriptor.num_filtered, positions)
        return replace(
            descriptor,
            blocks=blocks + 1,
            rows=num_random + pad_sampled_rows(descriptor.rows - descriptor.num_random, positions),
            num_random=num_random,
            num_filtered=num_filtered,
            history_len=padded_history_len(descriptor.history_len, static=descriptor.algorithm.static_history),
        )


def _round_up(number: int, sizes: list[int]) -> int:
    return sizes[bisect_left(sizes, number)]


def _fits(padded: ForwardDescriptor, descriptor: ForwardDescriptor) -> bool:
    """Whether a forward and the tiles of its padding tokens fit the padded descriptor."""
    tiles = descriptor.tiles + -(-(padded.rows - descriptor.rows) // padded.tile_rows)
    return tiles <= padded.tiles and descriptor.segments < padded.segments


def padded_history_len(history_len: int, *, static: bool) -> int:
    """Returns the padded number of history records per position."""
    return history_len if static or not history_len else max(MIN_HISTORY_LEN, 1 << (history_len - 1).bit_length())


def pad_sampled_rows(rows: int, positions: int) -> int:
    """Returns the padded number of sampled rows out of `positions` positions."""
    step = sampled_rows_step(positions)
    return -(-rows // step) * step


def sampled_rows_step(positions: int) -> int:
    return -(-max(positions // SAMPLED_ROWS_STEPS, 1) // SAMPLED_ROWS_MULTIPLE) * SAMPLED_ROWS_MULTIPLE


def forward_buffer_specs(descriptor: ForwardDescriptor) -> ArraySpecs:
    """Returns the dtypes and shapes of the input arrays of a forward."""
    rows, width = descriptor.soft_embedding_shape
    found: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {"segments": (I32, (descriptor.segments, FIELDS))}
    if rows:
        found["soft_embedding_rows"] = I64, (rows,)
        found["soft_embedding_ids"] = I64, (rows, width)
        found["soft_embedding_probs"] = F64, (rows, width)
        found["soft_embedding_params"] = F64, (rows, 3)
    return found


def pad_forward_inputs(into: Views, descriptor: ForwardDescriptor, arrays: Arrays, padded: ForwardDescriptor) -> None:
    """Writes the inputs of a forward into the buffers of a larger descriptor."""
    num_segments, segments = descriptor.segments, into["segments"]
    segments[:num_segments] = arrays["segments"]
    segments[num_segments] = 0
    segments[num_segments, START], segments[num_segments, COUNT] = PADDING, REMAINDER
    if num_segments:
        segments[num_segments, SLOT] = segments[0, SLOT]  # padding reads one key of a page that is in use
    if padded.soft_embedding_shape[0]:
        num_soft = descriptor.soft_embedding_shape[0]
        for name in ("soft_embedding_rows", "soft_embedding_ids", "soft_embedding_probs", "soft_embedding_params"):
            view = into[name]
            view[:num_soft] = arrays[name]
            view[num_soft:] = view[0] if num_soft else 0  # repeats a row, which is written twice with the same value


def sample_buffer_specs(descriptor: SampleDescriptor) -> ArraySpecs:
    """Returns the dtypes and shapes of the input arrays of sampling."""
    rows, n, size = descriptor.rows, descriptor.blocks, descriptor.size
    found: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = dict.fromkeys(("rows", "block", "at"), (I64, (rows,)))
    found["num_valid"] = I32, (1,)
    found |= dict.fromkeys(("block_first", "block_size"), (I64, (n,)))
    found["numbers"] = I64, (n, len(BLOCK_NUMBERS))
    if descriptor.uniform_noise or descriptor.num_random:
        found["draws"] = I64, (n, 3)
    if descriptor.self_conditioned:
        found["req_slot"] = I64, (n,)
    if descriptor.num_random:
        found["sampling_params"] = F64, (descriptor.num_random, len(NO_FILTERS))
    if len(descriptor.groups) > 1:
        found["block_in_group"] = I64, (rows,)
    for i, group in enumerate(descriptor.groups):
        if len(descriptor.groups) > 1:
            found[f"members{i}"] = I64, (group.blocks,)
        found[f"params{i}"] = F64, (group.blocks, len(group.algorithm.columns))
        if group.history_len:
            num_fields = len(group.algorithm.history_fields)
            found[f"history{i}"] = F64, (group.blocks, size, group.history_len, num_fields)
    return found


def sample_output_nbytes(descriptor: SampleDescriptor) -> int:
    """Returns an upper bound of the bytes of the output of sampling."""
    positions = descriptor.blocks * descriptor.size
    found = 128 * descriptor.blocks + 16 * positions + 1024  # counters, tokens, states, and the alignment of arrays
    for group in descriptor.groups:
        values = 2 * group.top_k + group.history_len * len(group.algorithm.history_fields)
        found += group.blocks * descriptor.size * values * F64.itemsize
    return found


def pad_sample_inputs(
    into: Views, descriptor: SampleDescriptor, arrays: Arrays, padded: SampleDescriptor, sizes: CaptureSizes
) -> None:
    """Writes the inputs of sampling into the buffers of a larger descriptor."""
    n, size, padding_block = descriptor.blocks, descriptor.size, padded.blocks - 1
    names = ("block_first", "block_size", "numbers", "draws")
    for name in names if "draws" in into else names[:-1]:
        into[name][:n] = arrays[name]
        into[name][n:] = 0
    if padded.self_conditioned:
        into["req_slot"][:n] = arrays.get("req_slot", sizes.max_num_reqs)
        into["req_slot"][n:] = sizes.max_num_reqs
    several = len(descriptor.groups) > 1
    into["num_valid"][0] = 0
    read = write = sampled_read = sampled_write = 0
    for i, (group, larger) in enumerate(zip(descriptor.groups, padded.groups, strict=True)):
        last = larger.blocks - 1  # the padding block of the group
        for parts, capacity in zip(_parts(group), _parts(larger), strict=True):
            for name, none in (("rows", 0), ("block", padding_block), ("at", 0), ("block_in_group", last)):
                if name == "block_in_group" and not several:
                    continue
                view = into[name][write : write + capacity]
                view[:parts] = arrays[name][read : read + parts]
                view[parts:] = none
            if parts:
                into["num_valid"][0] = write + parts
            read, write = read + parts, write + capacity
        for parts, capacity in zip(_parts(group)[1:], _parts(larger)[1:], strict=True):
            if capacity:
                view = into["sampling_params"][sampled_write : sampled_write + capacity]
                view[:parts] = arrays["sampling_params"][sampled_read : sampled_read + parts]
                view[parts:] = NO_FILTERS
            sampled_read, sampled_write = sampled_read + parts, sampled_write + capacity
        if several:
            members = into[f"members{i}"]
            members[: group.blocks] = arrays[f"members{i}"]
            members[group.blocks :] = padding_block
        params = into[f"params{i}"]
        params[: group.blocks] = arrays[f"params{i}"]
        params[group.blocks :] = params[0] if group.blocks else 0
        if group.history_len:
            out = into[f"history{i}"]
            out[...] = 0
            history = arrays[f"history{i}"]
            old = group.history_len - (not group.algorithm.static_history)  # the last record is new and stays zero
            out[: group.blocks, :size, :old] = history[:, :, :old]


def _parts(group: AlgorithmDescriptor) -> tuple[int, int, int]:
    """Returns the number of rows that are greedy, random without a filter, and random under min-p, top-k or top-p."""
    return group.rows - group.num_random, group.num_random - group.num_filtered, group.num_filtered
