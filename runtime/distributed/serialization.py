"""Converts step plans to arrays of messages, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np

from runtime.algorithms.base import UnmaskingAlgorithm
from runtime.distributed.rpc import Arrays, Sample
from runtime.engine.step_plan import (
    AlgorithmBatch,
    BatchLayout,
    DenoiseBlocks,
    LogitsProcessorBatch,
    SamplingInputs,
    SelfConditioningRows,
    SoftEmbeddingRows,
    StepPlan,
)

LAYOUT = ("positions", "slots", "visible_end", "window_origin", "is_editable", "tiles", "page_table")
MERGED = ("rows", "ids", "probs", "params")
CONDITIONED = ("rows", "req_slot")
LOGITS_PROCESSORS = tuple(field.name for field in fields(LogitsProcessorBatch))
BLOCKS = (
    "rows", "tokens", "state", "sampled", "may_force", "num_steps_forcing", "initial_masks", "step_budget",
    "post_edit_steps", "remasked", "noise_uniforms", "req_slot",
)  # fmt: skip


def step_arrays(plan: StepPlan, *, same: bool) -> Arrays:
    """Returns the arrays of a step. `same`: without the layout, which is that of the last step."""
    arrays: Arrays = {"tokens": plan.tokens}
    if not same:
        arrays |= {name: getattr(plan.layout, name) for name in LAYOUT}
        if plan.layout.lora_slots is not None:
            arrays["lora_slots"] = plan.layout.lora_slots
    if plan.soft_embeddings is not None:
        arrays |= {f"soft_embeddings_{name}": getattr(plan.soft_embeddings, name) for name in MERGED}
    if plan.self_conditioning is not None:
        arrays |= {f"self_conditioning_{name}": getattr(plan.self_conditioning, name) for name in CONDITIONED}
    return arrays


def batch_layout(arrays: Arrays, active_lora_modules: int = 0) -> BatchLayout:
    layout = {name: arrays[name] for name in LAYOUT}
    return BatchLayout(**layout, lora_slots=arrays.get("lora_slots"), active_lora_modules=active_lora_modules)


def step_plan(arrays: Arrays, layout: BatchLayout) -> StepPlan:
    """Returns a plan without its blocks."""
    merged = None
    if "soft_embeddings_rows" in arrays:
        merged = SoftEmbeddingRows(**{name: arrays[f"soft_embeddings_{name}"] for name in MERGED})
    conditioned = None
    if "self_conditioning_rows" in arrays:
        conditioned = SelfConditioningRows(**{name: arrays[f"self_conditioning_{name}"] for name in CONDITIONED})
    return StepPlan(arrays["tokens"], layout, merged, conditioned)


def block_arrays(plan: DenoiseBlocks | None) -> tuple[Sample, Arrays]:
    if plan is None:
        return Sample(none=True), {}
    arrays = {name: getattr(plan, name) for name in BLOCKS if getattr(plan, name) is not None}
    if plan.sampling is not None:
        arrays |= {"limits": plan.sampling.limits, "uniform": plan.sampling.uniform}
    if plan.logits_processors is not None:
        arrays |= {f"logits_processors_{name}": getattr(plan.logits_processors, name) for name in LOGITS_PROCESSORS}
    for i, group in enumerate(plan.groups):
        arrays |= {f"members{i}": group.members, f"params{i}": group.params}
        if group.history is not None:
            arrays[f"history{i}"] = group.history
    return Sample(groups=[(group.algorithm.key, int(group.required_stats)) for group in plan.groups]), arrays


def block_plan(
    message: Sample, arrays: Arrays, get_algorithm: Callable[[str], UnmaskingAlgorithm]
) -> DenoiseBlocks | None:
    if message.none:
        return None
    groups = tuple(
        AlgorithmBatch(
            get_algorithm(key), arrays[f"members{i}"], arrays[f"params{i}"], wants, arrays.get(f"history{i}")
        )
        for i, (key, wants) in enumerate(message.groups)
    )
    drawing = SamplingInputs(arrays["limits"], arrays["uniform"]) if "limits" in arrays else None
    processors = None
    if "logits_processors_ids" in arrays:
        processors = LogitsProcessorBatch(**{name: arrays[f"logits_processors_{name}"] for name in LOGITS_PROCESSORS})
    own: dict[str, np.ndarray[Any, Any] | None] = {name: arrays.get(name) for name in BLOCKS}
    return DenoiseBlocks(**own, sampling=drawing, groups=groups, logits_processors=processors)  # type: ignore[arg-type]
