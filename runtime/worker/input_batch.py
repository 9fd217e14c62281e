"""Prepares the input arrays of a step, whose shapes depend only on its descriptor.

All decisions that depend on the content of a step become index arrays here: which positions are sampled, and which
rows belong to which block. So the device launches the same kernels for all steps with the same descriptor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.algorithms.base import MIN_P, TEMPERATURE, TOKEN_MERGE_TOP_K, TOP_K, TOP_P, LogitStat, UnmaskingAlgorithm
from runtime.engine.logits_processors import logits_processor_arrays
from runtime.engine.step_plan import MASKED, DenoiseBlocks, StepPlan

Arrays = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class ForwardDescriptor:
    """Everything on which the launches of a forward depend.

    Attributes:
        tile_rows, reach: see ForwardBatch; upper bounds in a CUDA graph.
        soft_embedding_shape: number of rows with soft embeddings, and tokens per row.
        num_self_conditioned: blocks with the self-conditioning of their last step.
        active_lora_modules: ``ForwardBatch.adapted``.
    """

    rows: int
    tiles: int
    requests: int
    pages: int
    tile_rows: int
    reach: int
    soft_embedding_shape: tuple[int, int] = (0, 0)
    num_self_conditioned: int = 0
    active_lora_modules: int = 0


@dataclass(frozen=True)
class AlgorithmShape:
    """The part of a step that uses one unmasking algorithm.

    Attributes:
        algorithm: its key.
        required_stats: a ``Stat`` mask.
        blocks: number of blocks.
        rows: number of sampled positions.
        num_sampled: rows at the end that have a temperature; the others are greedy.
        num_filtered: of these, rows at the end under min-p, top-k or top-p.
        history_len: records per position (``BlockBatch.history``).
        static_history: one record per position, overwritten in each step.
        top_k: maximum number of tokens in a soft embedding (``algorithms.base.MERGED``).
    """

    algorithm: str
    required_stats: int
    blocks: int
    rows: int
    num_sampled: int = 0
    num_filtered: int = 0
    history_len: int = 0
    static_history: bool = False
    top_k: int = 0


@dataclass(frozen=True)
class SampleDescriptor:
    """Everything on which the launches of sampling depend: `blocks` of `size` positions, in groups."""

    blocks: int
    size: int
    groups: tuple[AlgorithmShape, ...]
    remasked: bool = False
    uniform_noise: bool = False
    self_conditioned: bool = False
    has_logits_processors: bool = False  # such a step is not captured

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)

    @property
    def num_sampled(self) -> int:
        return sum(group.num_sampled for group in self.groups)


def forward_inputs(plan: StepPlan, *, self_conditioning: bool, block_size: int) -> tuple[ForwardDescriptor, Arrays]:
    """Returns the descriptor and the input arrays of a forward.

    Args:
        self_conditioning: the model uses self-conditioning.
    """
    arrays: Arrays = {
        "tokens": plan.tokens,
        "positions": plan.positions,
        "slots": plan.slots,
        "visible_end": plan.visible_end,
        "window_origin": plan.window_origin,
        "is_editable": plan.is_editable,
        "tiles": plan.tiles,
        "page_table": plan.page_table,
    }
    soft_embedding_shape, num_self_conditioned = (0, 0), 0
    if plan.soft_embeddings is not None:
        soft_embedding_shape = plan.soft_embeddings.ids.shape
        arrays["soft_embedding_rows"] = plan.soft_embeddings.rows
        arrays["soft_embedding_ids"] = plan.soft_embeddings.ids
        arrays["soft_embedding_probs"] = plan.soft_embeddings.probs
        arrays["soft_embedding_params"] = plan.soft_embeddings.params
    if self_conditioning and plan.self_conditioning is not None:
        num_self_conditioned = len(plan.self_conditioning.rows)
        arrays["self_conditioning_rows"] = plan.self_conditioning.rows[:, None] + np.arange(block_size)
        arrays["self_conditioning_slots"] = plan.self_conditioning.req_slot
    if plan.active_lora_modules:
        assert plan.lora_slots is not None
        arrays["adapters"] = plan.lora_slots
    shape = ForwardDescriptor(
        rows=len(plan.tokens),
        tiles=len(plan.tiles),
        requests=plan.page_table.shape[0],
        pages=plan.page_table.shape[1],
        tile_rows=int(plan.tiles[:, 2].max()),
        reach=int(plan.positions.max()) + 1,
        soft_embedding_shape=soft_embedding_shape,
        num_self_conditioned=num_self_conditioned,
        active_lora_modules=plan.active_lora_modules,
    )
    return shape, arrays


def sample_inputs(
    plan: DenoiseBlocks, get_algorithm: Callable[[str], UnmaskingAlgorithm]
) -> tuple[SampleDescriptor, Arrays]:
    """Returns the descriptor and the input arrays of sampling.

    Sampled positions are ordered by group; within a group, greedy rows precede those with a temperature. The array
    `num_valid` holds the number of rows up to the last one that is not padding.
    """
    block, at = np.nonzero(plan.sampled)
    several = len(plan.groups) > 1
    kind, block, at = _sort_by_group(plan, block, at)
    counts = np.bincount(kind, minlength=3 * len(plan.groups)).reshape(-1, 3)
    arrays: Arrays = {
        "rows": plan.rows[block] + at,
        "block": block,
        "at": at,
        "num_valid": np.array([len(at)], dtype=np.int32),
        "block_tokens": plan.tokens,
        "block_state": plan.state,
        "may_force": plan.may_force,
        "num_steps_forcing": plan.num_steps_forcing,
        "initial_masks": plan.initial_masks,
        "step_budget": plan.step_budget,
        "post_edit_steps": plan.post_edit_steps,
    }
    if several:
        block_in_group = np.empty(len(plan.tokens), dtype=np.int64)  # index of each block in its group
        for group in plan.groups:
            block_in_group[group.members] = np.arange(len(group.members))
        arrays["block_in_group"] = block_in_group[block]
    if plan.remasked is not None:
        arrays["remasked"] = plan.remasked
    if plan.noise_uniforms is not None:
        arrays["noise_uniforms"] = plan.noise_uniforms
    if plan.req_slot is not None:
        arrays["req_slot"] = plan.req_slot
    if plan.logits_processors is not None:
        arrays |= logits_processor_arrays(plan.logits_processors)
    if plan.sampling is not None:
        sampled = np.flatnonzero(kind % 3)
        arrays["limits"] = plan.sampling.limits[block[sampled]]
        arrays["uniform"] = plan.sampling.uniform[block[sampled], at[sampled]]
    groups = []
    for i, (group, (num_greedy, num_unfiltered, num_filtered)) in enumerate(
        zip(plan.groups, counts.tolist(), strict=True)
    ):
        algorithm = get_algorithm(group.algorithm)
        top_k = 0
        if group.required_stats & LogitStat.TOP_K and TOKEN_MERGE_TOP_K.name in algorithm.columns:
            top_k = int(group.params[:, algorithm.columns[TOKEN_MERGE_TOP_K.name]].max())
        if several:
            arrays[f"members{i}"] = group.members
        arrays[f"params{i}"] = group.params
        history_len = 0
        if group.history is not None:
            arrays[f"history{i}"] = group.history
            history_len = group.history.shape[2]
        groups.append(
            AlgorithmShape(
                algorithm=group.algorithm,
                required_stats=group.required_stats,
                blocks=len(group.members),
                rows=num_greedy + num_unfiltered + num_filtered,
                num_sampled=num_unfiltered + num_filtered,
                num_filtered=num_filtered,
                history_len=history_len,
                static_history=algorithm.static_history,
                top_k=top_k,
            )
        )
    shape = SampleDescriptor(
        blocks=len(plan.tokens),
        size=plan.tokens.shape[1],
        groups=tuple(groups),
        remasked=plan.remasked is not None,
        uniform_noise=plan.noise_uniforms is not None,
        self_conditioned=plan.req_slot is not None,
        has_logits_processors=plan.logits_processors is not None,
    )
    return shape, arrays


Ints = npt.NDArray[np.int64]


def _sort_by_group(plan: DenoiseBlocks, block: Ints, at: Ints) -> tuple[Ints, Ints, Ints]:
    """Returns the sampled positions in their order and a code for each: the number of its group times 3, plus 0 for
    greedy rows, 1 for sampled rows, or 2 for rows under min-p, top-k or top-p."""
    kind = np.zeros(len(block), dtype=np.int64)
    if plan.sampling is not None:
        limits = plan.sampling.limits
        sampled = limits[:, TEMPERATURE] > 0
        filtered = sampled & ((limits[:, TOP_K] > 0) | (limits[:, TOP_P] < 1) | (limits[:, MIN_P] > 0))
        kind = np.where(plan.state[block, at] == MASKED, (sampled.astype(np.int64) + filtered)[block], 0)
    if len(plan.groups) > 1:
        number = np.empty(len(plan.tokens), dtype=np.int64)
        for i, group in enumerate(plan.groups):
            number[group.members] = i
        kind += 3 * number[block]
    elif plan.sampling is None:
        return kind, block, at
    order = kind.argsort(kind="stable")
    return kind[order], block[order], at[order]
