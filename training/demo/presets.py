"""The training recipes: `gpu` for the published checkpoint, `cpu` for machines without an accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from training.demo.data import NoiseRecipe
from training.demo.shape import Shape

_EVERY_TASK: Mapping[str, float] = {
    "add": 7.0,
    "subtract": 8.0,
    "multiply": 3.0,
    "product": 3.5,
    "compare": 4.0,
    "count": 1.5,
    "count_far": 0.6,
    "sort": 7.5,
    "spell": 4.5,
    "reverse": 6.0,
    "units": 20.0,
    "roman": 0.8,
    "json": 4.5,
    "table": 1.8,
    "followup": 2.5,
    "dialogue": 7.0,
    "greet": 1.0,
    "small_talk": 0.5,
    "about": 1.0,
    "abilities": 0.3,
    "refuse": 1.5,
    "near_miss": 3.0,
    "beyond": 15.0,
    "long_add": 0.8,
    "number_words": 2.0,
    "times_table": 0.6,
    "sudoku": 3.0,
    "story": 3.0,
    "story_any": 7.0,
    "story_free": 2.0,
    "fill": 5.0,
    "tool_call": 7.0,
    "tool_answer": 0.8,
    "tool_offered": 6.0,
}
_INTERIM_TASKS: Mapping[str, float] = {
    "add": 5.0,
    "subtract": 2.5,
    "multiply": 0.8,
    "compare": 1.0,
    "units": 0.6,
    "greet": 1.5,
    "abilities": 0.1,
    "refuse": 0.25,
}


@dataclass(frozen=True)
class Preset:
    """A training recipe. Learning rates follow a cosine over `total_minutes` of training time."""

    shape: Shape
    noise: NoiseRecipe
    tasks: Mapping[str, float] = field(default_factory=dict)
    rows: int = 48
    row_length: int = 2048
    matrix_lr: float = 0.02
    other_lr: float = 0.003
    decay: float = 0.01
    average: float = 0.996  # fraction of the averaged weights that an update keeps
    balance_rate: float = 0.001
    total_minutes: float = 8.5
    eval_every_minutes: float = 100.0
    eval_prompts: int = 32
    workers: int = 16


PRESETS: Mapping[str, Preset] = {
    "gpu": Preset(shape=Shape(), noise=NoiseRecipe(), tasks=_EVERY_TASK),
    "cpu": Preset(
        shape=Shape(
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            moe_intermediate_size=64,
        ),
        noise=NoiseRecipe(corrupt=0.1, block_weights=(0.1, 0.1, 0.8)),
        tasks=_INTERIM_TASKS,
        rows=10,
        row_length=384,
        average=0.992,
        total_minutes=80.0,
        eval_every_minutes=10.0,
        eval_prompts=8,
        workers=0,
    ),
}
