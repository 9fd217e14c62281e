"""Wider tasks, which the shipped checkpoint has not learned. Importing the package registers them all.

Each module has the name of the one in `runtime.demo.tasks` that it widens, and adds to its templates.
"""

from training.demo.tasks import (  # noqa: F401  they register themselves
    about,
    arithmetic,
    calling,
    comparing,
    dialogue,
    fill,
    followup,
    greetings,
    lists,
    near_misses,
    number_names,
    records,
    refusing,
    roman,
    spelling,
    story,
    units,
)
from training.demo.tasks.base import all_tasks

__all__ = ["all_tasks"]
