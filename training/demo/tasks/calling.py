"""Questions of the wider tasks that need no tool."""

from __future__ import annotations

import random

from runtime.demo.tasks import calling as shipped
from runtime.demo.tasks.base import Sample, answers_last
from training.demo.tasks.base import all_tasks, task


def _right(sample: Sample, text: str) -> bool:
    return answers_last(all_tasks(), sample, text)


@task("tool_offered", "short", _right)
def tool_offered(rng: random.Random) -> Sample:
    return shipped.offered(rng, all_tasks())
