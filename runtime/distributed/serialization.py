"""Converts step plans to arrays of messages, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from runtime.distributed.rpc import Arrays, Sample
from runtime.engine.step_plan import BlockPlan, ConditionedRows, Drawing, MergedRows, RulePlan, ShapingPlan, StepPlan

LAYOUT = ("positions", "slots", "visible_end", "window_origin", "open", "tiles", "page_table")
MERGED = ("rows", "ids", "probs", "how")
CONDITIONED = ("rows", "place")
LOGITS_PROCESSORS = tuple(field.name for field in fields(ShapingPlan))
BLOCKS = (
    "rows", "tokens", "state", "sampled", "may_force", "advanced", "initial_masks", "given_steps", "post_edit_steps",
    "remasked", "noise", "place",
)  # fmt: skip


def step_arrays(plan: StepPlan, *, same: bool) -> Arrays:
    """Returns the arrays of a step. `same`: without the layout, which is that of the last step."""
    arrays: Arrays = {"tokens": plan.tokens}
    if not same:
        arrays |= {name: getattr(plan, name) for name in LAYOUT}
    if plan.adapters is not None:
        arrays["adapters"] = plan.adapters
    if plan.merged is not None:
        arrays |= {f"merged_{name}": getattr(plan.merged, name) for name in MERGED}
    if plan.conditioned is not None:
        arrays |= {f"conditioned_{name}": getattr(plan.conditioned, name) for name in CONDITIONED}
    return arrays


def step_plan(
    arrays: Arrays, geometry: Mapping[str, Any], sampled: Callable[[], BlockPlan | None], adapted: int = 0
) -> StepPlan:
    merged = None
    if "merged_rows" in arrays:
        merged = MergedRows(**{name: arrays[f"merged_{name}"] for name in MERGED})
    conditioned = None
    if "conditioned_rows" in arrays:
        conditioned = ConditionedRows(**{name: arrays[f"conditioned_{name}"] for name in CONDITIONED})
    return StepPlan(
        tokens=arrays["tokens"], **geometry, sampled=sampled, merged=merged, conditioned=conditioned,
        adapters=arrays.get("adapters"), adapted=adapted,
    )  # fmt: skip


def block_arrays(plan: BlockPlan | None) -> tuple[Sample, Arrays]:
    if plan is None:
        return Sample(none=True), {}
    arrays = {name: getattr(plan, name) for name in BLOCKS if getattr(plan, name) is not None}
    if plan.drawing is not None:
        arrays |= {"limits": plan.drawing.limits, "uniform": plan.drawing.uniform}
    if plan.shaping is not None:
        arrays |= {f"shaped_{name}": getattr(plan.shaping, name) for name in LOGITS_PROCESSORS}
    for i, group in enumerate(plan.groups):
        arrays |= {f"members{i}": group.members, f"params{i}": group.params}
        if group.kept is not None:
            arrays[f"kept{i}"] = group.kept
    return Sample(groups=[(group.rule, int(group.wants)) for group in plan.groups]), arrays


def block_plan(message: Sample, arrays: Arrays) -> BlockPlan | None:
    if message.none:
        return None
    groups = tuple(
        RulePlan(rule, arrays[f"members{i}"], arrays[f"params{i}"], wants, arrays.get(f"kept{i}"))
        for i, (rule, wants) in enumerate(message.groups)
    )
    drawing = Drawing(arrays["limits"], arrays["uniform"]) if "limits" in arrays else None
    processors = None
    if "shaped_ids" in arrays:
        processors = ShapingPlan(**{name: arrays[f"shaped_{name}"] for name in LOGITS_PROCESSORS})
    own: dict[str, np.ndarray[Any, Any] | None] = {name: arrays.get(name) for name in BLOCKS}
    return BlockPlan(**own, drawing=drawing, groups=groups, shaping=processors)  # type: ignore[arg-type]
