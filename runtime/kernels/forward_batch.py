"""The input of one forward pass: the rows of all requests, prefill chunks and denoising blocks alike.

Every row carries the range of keys that it attends to. The visible keys are data of the row
(docs/research/decoding-rules.md#visible-keys), so layers and kernels depend on no block size and no strategy.

Padding rows fill a batch up to the size of a captured CUDA graph: their slot is -1 and nothing is stored, their tile
has no rows, and their expert is -1. Their results are never read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

MAX_TILE_ROWS = 256  # maximum rows per query tile


@dataclass(frozen=True)
class ForwardBatch:
    """Inputs of one forward pass besides the embeddings.

    Row r is at ``positions[r]`` of its request. Its K/V is stored at ``slots[r]`` before attention. Its query then
    attends to the keys at positions ``k < visible_end[r]`` of the same request, found through the page table. In a
    layer with a sliding window W, only the keys with ``window_pos[r] - k < W`` are visible.

    Attributes:
        tokens: int64 [rows].
        positions: int64 [rows].
        slots: int64 [rows], page * page_size + offset; -1 for padding.
        visible_end: int32 [rows].
        window_pos: int64 [rows], the row's own position, or the first position of its open canvas.
        is_editable: bool [rows], the row's block may still change; False: its K/V is final. DiffusionGemma computes
            committed and editable rows differently.
        query_tiles: int32 [tiles, 3]: request, first row, number of rows; in ascending order of rows.
        page_table: int32 [requests, pages]; entries past the end of a request are any valid page.
        page_size: tokens per page.
        tile_rows: maximum rows of a tile.
        max_seq_len: largest position plus one.
        self_conditioning: [rows, hidden], from the last step of each editable row; None if no row has one.
        lora_slots: int32 [rows], the adapter slot of each row, -1 for none; None if no row has an adapter.
        active_lora_modules: bit mask of the modules that these adapters may change
            (``layers.lora.LoRAContext.module_bit``); 0 if no row has an adapter.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    visible_end: torch.Tensor
    window_pos: torch.Tensor
    is_editable: torch.Tensor
    query_tiles: torch.Tensor
    page_table: torch.Tensor
    page_size: int
    tile_rows: int
    max_seq_len: int
    self_conditioning: torch.Tensor | None = None
    lora_slots: torch.Tensor | None = None
    active_lora_modules: int = 0
