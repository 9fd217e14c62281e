"""What the device needs of a step, as named arrays whose sizes follow from a shape and from nothing else.

Whatever depends on the step's contents (which positions are sampled, who draws, whose rows are whose) is worked out
here and becomes indices, so that the device's work is the same for all steps of a shape and asks the host nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.algorithms.base import MERGED, MIN_P, TEMPERATURE, TOP_K, TOP_P, Rule, Stat
from runtime.engine.request import MASKED
from runtime.engine.step_plan import BlockPlan, StepPlan
from runtime.worker.sample.logits_processors import shaping_arrays

Arrays = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class ForwardShape:
    """All that the forward's launches depend on. `tile_rows`, `reach`: see ForwardBatch; under a recorded graph bounds.

    `merged`: rows whose embedding is made of several tokens', and of how many each. `told`: blocks whose last step a
    model that conditions itself is told of. `adapted`: see ForwardBatch.
    """

    rows: int
    tiles: int
    requests: int
    pages: int
    tile_rows: int
    reach: int
    merged: tuple[int, int] = (0, 0)
    told: int = 0
    adapted: int = 0


@dataclass(frozen=True)
class GroupShape:
    """One rule's part of a step: `blocks` of the plan's, with `rows` sampled positions, of which the last `drawn` draw
    and the last `limited` of these do so under min-p, top-k or top-p; `records` it remembers (``BlockBatch.kept``),
    `once` if that is always one, and the most tokens that it mixes (``algorithms.base.MERGED``)."""

    rule: str
    wants: int
    blocks: int
    rows: int
    drawn: int = 0
    limited: int = 0
    records: int = 0
    once: bool = False
    top: int = 0


@dataclass(frozen=True)
class SampleShape:
    """All that the head's and the rules' launches depend on: `blocks` of `size` positions, in groups."""

    blocks: int
    size: int
    groups: tuple[GroupShape, ...]
    remasked: bool = False
    noise: bool = False
    placed: bool = False
    shaped: bool = False  # something is done to logits; such a step is not recorded

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups)

    @property
    def drawn(self) -> int:
        return sum(group.drawn for group in self.groups)


def forward_inputs(plan: StepPlan, *, told: bool, block_size: int) -> tuple[ForwardShape, Arrays]:
    """`told`: the model conditions itself."""
    arrays: Arrays = {
        "tokens": plan.tokens,
        "positions": plan.positions,
        "slots": plan.slots,
        "visible_end": plan.visible_end,
        "window_origin": plan.window_origin,
        "open": plan.open,
        "tiles": plan.tiles,
        "page_table": plan.page_table,
    }
    merged, later = (0, 0), 0
    if plan.merged is not None:
        merged = plan.merged.ids.shape
        arrays["merged_rows"] = plan.merged.rows
        arrays["merged_ids"] = plan.merged.ids
        arrays["merged_probs"] = plan.merged.probs
        arrays["merged_how"] = plan.merged.how
    if told and plan.conditioned is not None:
        later = len(plan.conditioned.rows)
        arrays["told_rows"] = plan.conditioned.rows[:, None] + np.arange(block_size)
        arrays["told_place"] = plan.conditioned.place
    if plan.adapted:
        assert plan.adapters is not None
        arrays["adapters"] = plan.adapters
    shape = ForwardShape(
        rows=len(plan.tokens),
        tiles=len(plan.tiles),
        requests=plan.page_table.shape[0],
        pages=plan.page_table.shape[1],
        tile_rows=int(plan.tiles[:, 2].max()),
        reach=int(plan.positions.max()) + 1,
        merged=merged,
        told=later,
        adapted=plan.adapted,
    )
    return shape, arrays


def sample_inputs(plan: BlockPlan, rules: Callable[[str], Rule]) -> tuple[SampleShape, Arrays]:
    """Sampled positions lie in the order of their groups, and within one those that draw come last; else as in the
    plan. `live`: how many there are, up to the last one that is not dead."""
    block, at = np.nonzero(plan.sampled)
    several = len(plan.groups) > 1
    kind, block, at = _ordered(plan, block, at)
    counts = np.bincount(kind, minlength=3 * len(plan.groups)).reshape(-1, 3)
    arrays: Arrays = {
        "rows": plan.rows[block] + at,
        "block": block,
        "at": at,
        "live": np.array([len(at)], dtype=np.int32),
        "block_tokens": plan.tokens,
        "block_state": plan.state,
        "may_force": plan.may_force,
        "advanced": plan.advanced,
        "initial_masks": plan.initial_masks,
        "given_steps": plan.given_steps,
        "post_edit_steps": plan.post_edit_steps,
    }
    if several:
        own = np.empty(len(plan.tokens), dtype=np.int64)  # each block's number among its group's
        for group in plan.groups:
            own[group.members] = np.arange(len(group.members))
        arrays["own"] = own[block]
    if plan.remasked is not None:
        arrays["remasked"] = plan.remasked
    if plan.noise is not None:
        arrays["noise"] = plan.noise
    if plan.place is not None:
        arrays["place"] = plan.place
    if plan.shaping is not None:
        arrays |= shaping_arrays(plan.shaping)
    if plan.drawing is not None:
        drawn = np.flatnonzero(kind % 3)
        arrays["limits"] = plan.drawing.limits[block[drawn]]
        arrays["uniform"] = plan.drawing.uniform[block[drawn], at[drawn]]
    groups = []
    for i, (group, (plain, free, limited)) in enumerate(zip(plan.groups, counts.tolist(), strict=True)):
        rule = rules(group.rule)
        top = 0
        if group.wants & Stat.TOP and MERGED.name in rule.columns:
            top = int(group.params[:, rule.columns[MERGED.name]].max())
        if several:
            arrays[f"members{i}"] = group.members
        arrays[f"params{i}"] = group.params
        records = 0
        if group.kept is not None:
            arrays[f"kept{i}"] = group.kept
            records = group.kept.shape[2]
        groups.append(
            GroupShape(
                rule=group.rule,
                wants=group.wants,
                blocks=len(group.members),
                rows=plain + free + limited,
                drawn=free + limited,
                limited=limited,
                records=records,
                once=rule.once,
                top=top,
            )
        )
    shape = SampleShape(
        blocks=len(plan.tokens),
        size=plan.tokens.shape[1],
        groups=tuple(groups),
        remasked=plan.remasked is not None,
        noise=plan.noise is not None,
        placed=plan.place is not None,
        shaped=plan.shaping is not None,
    )
    return shape, arrays


Ints = npt.NDArray[np.int64]


def _ordered(plan: BlockPlan, block: Ints, at: Ints) -> tuple[Ints, Ints, Ints]:
    """Sampled positions in their order, and of each its group's number times 3 plus: 0, it takes the likeliest; 1, it
    draws; 2, it draws under min-p, top-k or top-p."""
    kind = np.zeros(len(block), dtype=np.int64)
    if plan.drawing is not None:
        limits = plan.drawing.limits
        draws = limits[:, TEMPERATURE] > 0
        limited = draws & ((limits[:, TOP_K] > 0) | (limits[:, TOP_P] < 1) | (limits[:, MIN_P] > 0))
        kind = np.where(plan.state[block, at] == MASKED, (draws.astype(np.int64) + limited)[block], 0)
    if len(plan.groups) > 1:
        number = np.empty(len(plan.tokens), dtype=np.int64)
        for i, group in enumerate(plan.groups):
            number[group.members] = i
        kind += 3 * number[block]
    elif plan.drawing is None:
        return kind, block, at
    order = kind.argsort(kind="stable")
    return kind[order], block[order], at[order]
