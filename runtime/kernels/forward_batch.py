"""Inputs of a forward pass: its rows, their slots in the KV cache, and the keys that each row attends to.

The visible keys are data of the row (docs/decoding-rules.md#visible-keys), so layers and kernels depend on no block
size and no strategy.

Dead rows fill a batch up to a size (a captured graph has one): slot -1 is stored nowhere, a tile of no rows does
nothing, and expert -1 is nobody's. What a dead row yields is never read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

TILE_ROWS = 256  # most rows of one tile


@dataclass(frozen=True)
class ForwardBatch:
    """Row r sits at ``positions[r]`` of its request. Every row's K/V is stored at ``slots[r]`` before attention; its
    query then sees the keys at positions ``k < visible_end[r]`` of its own request, found through the page table, and
    in a layer with a window W only those with ``window_origin[r] - k < W``.

    What a row is for matters to models that compute what stays otherwise than what is still open: `open` says which it
    is, and `signal` what such a model is told of an open row's last step.
    """

    tokens: torch.Tensor  # int64 [rows]
    positions: torch.Tensor  # int64 [rows]
    slots: torch.Tensor  # int64 [rows], page * page_size + offset; -1: dead
    visible_end: torch.Tensor  # int32 [rows]
    window_origin: torch.Tensor  # int64 [rows]: the row's own position, or the first one of its open canvas
    open: torch.Tensor  # bool [rows]: of a block that may still change; False: settled, so that its K/V stays
    tiles: torch.Tensor  # int32 [tiles, 3]: request, first row, rows; in the order of their rows
    page_table: torch.Tensor  # int32 [requests, pages]; entries past a request's end are some valid page
    page_size: int
    tile_rows: int  # most rows of a tile
    reach: int  # one more than the largest position
    signal: torch.Tensor | None = None  # [rows, hidden], for a model that conditions itself; None: first steps only
    adapters: torch.Tensor | None = None  # int32 [rows], the slot of each row's adapter, -1: none; None: all have none
    adapted: int = 0  # which weights these adapters may change (``layers.lora.Lora.bit``); 0: all have none


def cut_tiles(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Tiles [tiles, 3] of runs of `counts` rows that follow each other, the n-th run request n's."""
    starts = np.cumsum(counts) - counts
    if counts.max() <= TILE_ROWS:
        whole = np.empty((len(counts), 3), dtype=np.int32)  # quicker than stacking, and every step of a batch does it
        whole[:, 0], whole[:, 1], whole[:, 2] = np.arange(len(counts)), starts, counts
        return whole
    pieces = -(-counts // TILE_ROWS)
    request = np.repeat(np.arange(len(counts)), pieces)
    done = (np.arange(len(request)) - (np.cumsum(pieces) - pieces)[request]) * TILE_ROWS
    rows = np.minimum(counts[request] - done, TILE_ROWS)
    return np.stack([request, starts[request] + done, rows], axis=1).astype(np.int32)
