"""Pads the inputs of a step to a captured size and writes them into the input buffers of the CUDA graph.

Padding has no effect on results. A padding token writes no KV and attends to one key, so its output is finite and
unused. A padding block is FIXED at all positions, and padding rows of sampling belong to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.algorithms.base import NO_FILTERS
from runtime.worker.capture_sizes import CaptureSizes
from runtime.worker.host_buffers import ArraySpecs
from runtime.worker.input_batch import AlgorithmShape, Arrays, ForwardDescriptor, SampleDescriptor

Views = dict[str, npt.NDArray[Any]]

I64, I32, I8, BOOL, F64 = (np.dtype(kind) for kind in (np.int64, np.int32, np.int8, np.bool_, np.float64))
ROWS = {  # dtype of the value per row, and its value for padding tokens
    "tokens": (I64, 0),
    "positions": (I64, 0),
    "slots": (I64, -1),
    "visible_end": (I32, 1),
    "window_origin": (I64, 0),
    "is_editable": (BOOL, False),
}
BLOCKS = {"may_force": BOOL, "num_steps_forcing": I64, "initial_masks": I64, "step_budget": I64, "post_edit_steps": I64}


def forward_buffer_specs(shape: ForwardDescriptor, block_size: int) -> ArraySpecs:
    """Returns the dtypes and shapes of the input arrays of a forward."""
    rows, width = shape.soft_embedding_shape
    adapters = {"adapters": (I32, (shape.rows,))} if shape.active_lora_modules else {}
    found: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
        name: (dtype, (shape.rows,)) for name, (dtype, _) in ROWS.items()
    }
    found |= adapters
    found["tiles"] = I32, (shape.tiles, 3)
    found["page_table"] = I32, (shape.requests, shape.pages)
    if rows:
        found["soft_embedding_rows"] = I64, (rows,)
        found["soft_embedding_ids"] = I64, (rows, width)
        found["soft_embedding_probs"] = F64, (rows, width)
        found["soft_embedding_params"] = F64, (rows, 3)
    if shape.num_self_conditioned:
        found["self_conditioning_rows"] = I64, (shape.num_self_conditioned, block_size)
        found["self_conditioning_slots"] = I64, (shape.num_self_conditioned,)
    return found


def pad_forward_inputs(
    into: Views, shape: ForwardDescriptor, arrays: Arrays, padded: ForwardDescriptor, sizes: CaptureSizes
) -> None:
    """Writes the inputs of a forward into the buffers of a larger descriptor."""
    rows = shape.rows
    for name, (_, padding) in ROWS.items():
        view = into[name]
        view[:rows] = arrays[name]
        view[rows:] = padding
    if padded.active_lora_modules:
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
    if padded.soft_embedding_shape[0]:
        num_soft = shape.soft_embedding_shape[0]
        for name in ("soft_embedding_rows", "soft_embedding_ids", "soft_embedding_probs", "soft_embedding_params"):
            view = into[name]
            view[:num_soft] = arrays[name]
            view[num_soft:] = view[0] if num_soft else 0  # repeats a row, which is written twice with the same value
    if padded.num_self_conditioned:
        num_conditioned = shape.num_self_conditioned
        if num_conditioned:
            into["self_conditioning_rows"][:num_conditioned] = arrays["self_conditioning_rows"]
            into["self_conditioning_slots"][:num_conditioned] = arrays["self_conditioning_slots"]
        into["self_conditioning_rows"][num_conditioned:] = padded.rows
        into["self_conditioning_slots"][num_conditioned:] = sizes.max_num_reqs


def sample_buffer_specs(shape: SampleDescriptor, columns: list[int], history_fields: list[int]) -> ArraySpecs:
    """Returns the dtypes and shapes of the input arrays of sampling.

    Args:
        columns: number of parameters of each group's algorithm.
        history_fields: number of history fields of each group's algorithm.
    """
    rows, n, size = shape.rows, shape.blocks, shape.size
    found: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = dict.fromkeys(("rows", "block", "at"), (I64, (rows,)))
    found["num_valid"] = I32, (1,)
    found["block_tokens"] = I64, (n, size)
    found["block_state"] = I8, (n, size)
    found["remasked"] = BOOL, (n, size)
    found |= {name: (dtype, (n,)) for name, dtype in BLOCKS.items()}
    if shape.uniform_noise:
        found["noise_uniforms"] = F64, (n, size)
    if shape.self_conditioned:
        found["req_slot"] = I64, (n,)
    if shape.num_sampled:
        found["limits"] = F64, (shape.num_sampled, len(NO_FILTERS))
        found["uniform"] = F64, (shape.num_sampled,)
    if len(shape.groups) > 1:
        found["block_in_group"] = I64, (rows,)
    for i, (group, width, num_fields) in enumerate(zip(shape.groups, columns, history_fields, strict=True)):
        if len(shape.groups) > 1:
            found[f"members{i}"] = I64, (group.blocks,)
        found[f"params{i}"] = F64, (group.blocks, width)
        if group.history_len:
            found[f"history{i}"] = F64, (group.blocks, size, group.history_len, num_fields)
    return found


def pad_sample_inputs(
    into: Views, shape: SampleDescriptor, arrays: Arrays, padded: SampleDescriptor, sizes: CaptureSizes
) -> None:
    """Writes the inputs of sampling into the buffers of a larger descriptor."""
    n, size, padding_block = shape.blocks, shape.size, padded.blocks - 1
    for name in ("block_tokens", "block_state", "remasked", "noise_uniforms"):
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
    if padded.self_conditioned:
        into["req_slot"][:n] = arrays.get("req_slot", sizes.max_num_reqs)
        into["req_slot"][n:] = sizes.max_num_reqs
    several = len(shape.groups) > 1
    into["num_valid"][0] = 0
    read = write = drawn_read = drawn_write = 0
    for i, (group, larger) in enumerate(zip(shape.groups, padded.groups, strict=True)):
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
                for name, none_drawn in (("limits", NO_FILTERS), ("uniform", 0.0)):
                    view = into[name][drawn_write : drawn_write + capacity]
                    view[:parts] = arrays[name][drawn_read : drawn_read + parts]
                    view[parts:] = none_drawn
            drawn_read, drawn_write = drawn_read + parts, drawn_write + capacity
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
            old = group.history_len - (not group.static_history)  # the last record is new and stays zero
            out[: group.blocks, :size, :old] = history[:, :, :old]


def _parts(group: AlgorithmShape) -> tuple[int, int, int]:
    """Returns the number of rows that are greedy, sampled without a filter, and sampled under min-p, top-k or top-p."""
    return group.rows - group.num_sampled, group.num_sampled - group.num_filtered, group.num_filtered
