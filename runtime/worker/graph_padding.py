"""Steps filled up to a size, written where the device will read them.

What is added changes nothing: a dead row is stored nowhere and sees one key of whatever request comes first, so that it
is finite; a dead block is fixed throughout, and sampled rows that are added belong to it. Whatever comes of them is
dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.algorithms.base import FREE
from runtime.worker.capture_sizes import Sizes
from runtime.worker.host_buffers import Kinds
from runtime.worker.input_batch import Arrays, ForwardShape, SampleShape

Views = dict[str, npt.NDArray[Any]]

I64, I32, I8, BOOL, F64 = (np.dtype(kind) for kind in (np.int64, np.int32, np.int8, np.bool_, np.float64))
ROWS = {  # of each row, and of a dead one
    "tokens": (I64, 0),
    "positions": (I64, 0),
    "slots": (I64, -1),
    "visible_end": (I32, 1),
    "window_origin": (I64, 0),
    "open": (BOOL, False),
}
BLOCKS = {"may_force": BOOL, "advanced": I64, "initial_masks": I64, "given_steps": I64, "post_edit_steps": I64}


def forward_kinds(shape: ForwardShape, block_size: int) -> Kinds:
    """The arrays of a forward of a shape."""
    rows, width = shape.merged
    adapters = {"adapters": (I32, (shape.rows,))} if shape.adapted else {}
    found: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
        name: (dtype, (shape.rows,)) for name, (dtype, _) in ROWS.items()
    }
    found |= adapters
    found["tiles"] = I32, (shape.tiles, 3)
    found["page_table"] = I32, (shape.requests, shape.pages)
    if rows:
        found["merged_rows"] = I64, (rows,)
        found["merged_ids"] = I64, (rows, width)
        found["merged_probs"] = F64, (rows, width)
        found["merged_how"] = F64, (rows, 3)
    if shape.told:
        found["told_rows"] = I64, (shape.told, block_size)
        found["told_place"] = I64, (shape.told,)
    return found


def fill_forward(into: Views, shape: ForwardShape, arrays: Arrays, padded: ForwardShape, sizes: Sizes) -> None:
    """Write a forward's arrays into those of a larger shape."""
    rows = shape.rows
    for name, (_, dead) in ROWS.items():
        view = into[name]
        view[:rows] = arrays[name]
        view[rows:] = dead
    if padded.adapted:
        into["adapters"][:rows] = arrays["adapters"]
        into["adapters"][rows:] = -1
    tiles, at = into["tiles"], shape.tiles
    tiles[:at] = arrays["tiles"]
    for first in range(rows, padded.rows, padded.tile_rows):
        tiles[at] = 0, first, min(padded.tile_rows, padded.rows - first)
        at += 1
    tiles[at:] = 0
    table = into["page_table"]
    table[: shape.requests, : shape.pages] = arrays["page_table"]
    table[: shape.requests, shape.pages :] = 0
    table[shape.requests :] = 0
    if padded.merged[0]:
        merged = shape.merged[0]
        for name in ("merged_rows", "merged_ids", "merged_probs", "merged_how"):
            view = into[name]
            view[:merged] = arrays[name]
            view[merged:] = view[0] if merged else 0  # once more: it comes to the same
    if padded.told:
        told = shape.told
        if told:
            into["told_rows"][:told] = arrays["told_rows"]
            into["told_place"][:told] = arrays["told_place"]
        into["told_rows"][told:] = padded.rows
        into["told_place"][told:] = sizes.places


def sample_kinds(shape: SampleShape, columns: list[int], keeps: list[int]) -> Kinds:
    """The arrays of a shape's blocks. `columns`, `keeps`: of each group's rule."""
    rows, n, size = shape.rows, shape.blocks, shape.size
    found: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = dict.fromkeys(("rows", "block", "at"), (I64, (rows,)))
    found["live"] = I32, (1,)
    found["block_tokens"] = I64, (n, size)
    found["block_state"] = I8, (n, size)
    found["remasked"] = BOOL, (n, size)
    found |= {name: (dtype, (n,)) for name, dtype in BLOCKS.items()}
    if shape.noise:
        found["noise"] = F64, (n, size)
    if shape.placed:
        found["place"] = I64, (n,)
    if shape.drawn:
        found["limits"] = F64, (shape.drawn, len(FREE))
        found["uniform"] = F64, (shape.drawn,)
    if len(shape.groups) > 1:
        found["own"] = I64, (rows,)
    for i, (group, width, kept) in enumerate(zip(shape.groups, columns, keeps, strict=True)):
        if len(shape.groups) > 1:
            found[f"members{i}"] = I64, (group.blocks,)
        found[f"params{i}"] = F64, (group.blocks, width)
        if group.records:
            found[f"kept{i}"] = F64, (group.blocks, size, group.records, kept)
    return found


def fill_sample(into: Views, shape: SampleShape, arrays: Arrays, padded: SampleShape, sizes: Sizes) -> None:
    """Write the arrays of a step's blocks into those of a larger shape."""
    n, size, dead = shape.blocks, shape.size, padded.blocks - 1
    for name in ("block_tokens", "block_state", "remasked", "noise"):
        view = into.get(name)
        if view is None:
            continue
        if size < padded.size or name not in arrays:
            view[:n] = 0
        if name in arrays:
            view[:n, :size] = arrays[name]
        view[n:] = 0
    for name in BLOCKS:
        into[name][:n] = arrays[name]
        into[name][n:] = 0
    if padded.placed:
        into["place"][:n] = arrays.get("place", sizes.places)
        into["place"][n:] = sizes.places
    several = len(shape.groups) > 1
    into["live"][0] = 0
    read = write = drawn_read = drawn_write = 0
    for i, (group, larger) in enumerate(zip(shape.groups, padded.groups, strict=True)):
        last = larger.blocks - 1  # of the group's, a dead one
        for parts, room in zip(_parts(group), _parts(larger), strict=True):
            for name, none in (("rows", 0), ("block", dead), ("at", 0), ("own", last)):
                if name == "own" and not several:
                    continue
                view = into[name][write : write + room]
                view[:parts] = arrays[name][read : read + parts]
                view[parts:] = none
            if parts:
                into["live"][0] = write + parts
            read, write = read + parts, write + room
        for parts, room in zip(_parts(group)[1:], _parts(larger)[1:], strict=True):
            if room:
                for name, none_drawn in (("limits", FREE), ("uniform", 0.0)):
                    view = into[name][drawn_write : drawn_write + room]
                    view[:parts] = arrays[name][drawn_read : drawn_read + parts]
                    view[parts:] = none_drawn
            drawn_read, drawn_write = drawn_read + parts, drawn_write + room
        if several:
            members = into[f"members{i}"]
            members[: group.blocks] = arrays[f"members{i}"]
            members[group.blocks :] = dead
        params = into[f"params{i}"]
        params[: group.blocks] = arrays[f"params{i}"]
        params[group.blocks :] = params[0] if group.blocks else 0
        if group.records:
            kept = into[f"kept{i}"]
            kept[...] = 0
            given = arrays[f"kept{i}"]
            old = group.records - (not group.once)  # the last is new wherever it is
            kept[: group.blocks, :size, :old] = given[:, :, :old]


def _parts(group: Any) -> tuple[int, int, int]:
    """Sampled rows that take the likeliest, that draw, and that draw under top-k or top-p."""
    return group.rows - group.drawn, group.drawn - group.limited, group.limited
