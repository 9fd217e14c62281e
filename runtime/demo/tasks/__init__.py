"""The demo model's tasks: one file a small group. Importing the package registers them all. Standard library only."""

from runtime.demo.tasks import (
    arithmetic,
    dialogue,
    fill,
    followup,
    lists,
    long_addition,
    number_words,
    records,
    spelling,
    story,
    sudoku,
    talk,
    times_table,
    units,
)
from runtime.demo.tasks.base import Sample, Task, all_tasks, draw, held_out_samples

__all__ = [
    "Sample",
    "Task",
    "all_tasks",
    "arithmetic",
    "dialogue",
    "draw",
    "fill",
    "followup",
    "held_out_samples",
    "lists",
    "long_addition",
    "number_words",
    "records",
    "spelling",
    "story",
    "sudoku",
    "talk",
    "times_table",
    "units",
]
