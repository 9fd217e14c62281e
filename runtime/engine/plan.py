"""What the scheduler asks of the runner for one step, and what comes back: plain numpy arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Ints32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class BlockPlan:
    """The `n` blocks of `B` positions that this step denoises, in the order of their requests.

    `sampled` marks the positions whose logits the rules need; `uniform` (with `draws`, those of positions that draw
    instead of taking the likeliest) holds the requests' own random numbers.
    """

    rows: Ints  # [n] row of each block's first position
    tokens: Ints  # [n, B]
    state: Bytes  # [n, B] FIXED, MASKED or FILLED
    sampled: Bools  # [n, B]
    params: Floats  # [n, len(Param)]
    may_force: Bools  # [n]
    advanced: Ints  # [n]
    initial_masks: Ints  # [n]
    post_edit_steps: Ints  # [n]
    remasked: Bools | None  # [n, B]
    uniform: Floats | None  # [n, B]
    groups: tuple[tuple[str, Ints], ...]  # acceptance rule -> the blocks it decides


@dataclass(frozen=True)
class StepPlan:
    """One forward: rows of all sequences end to end, where their K/V goes, and which blocks are sampled."""

    tokens: Ints  # [rows]
    positions: Ints  # [rows]
    slots: Ints  # [rows]
    seq_rows: Ints32  # [seqs + 1]
    cached: Ints32  # [seqs]
    kv_len: Ints32  # [seqs]
    page_table: Ints32  # [seqs, pages]
    blocks: BlockPlan | None


@dataclass(frozen=True)
class BlockResults:
    """The sampled blocks after the step."""

    tokens: Ints  # [n, B]
    state: Bytes  # [n, B] FIXED, MASKED or FILLED
    remasked: Bools  # [n, B] masked again in this step
    masks: list[int]  # MASKED positions left
    first_masked: list[int]  # offset, B if none
    first_eos: list[int]  # offset of the first FILLED end-of-sequence id, B if none
    written: list[int]  # positions this step filled, replaced or masked again
    edits: list[int]
    remasks: list[int]
    forced: list[bool]
    ended: list[bool]
