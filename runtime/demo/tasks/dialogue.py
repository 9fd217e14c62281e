"""A conversation that wanders: some exchanges about other things, then a question that has nothing to do with them.

The earlier exchanges are never of the held-out split, so that no held-out question is answered in training.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from runtime.demo.tasks.base import Sample, all_tasks, task

_LEAST_CHARACTERS, _MOST_CHARACTERS = 60, 500  # of all earlier turns; a digit is a token, so this bounds tokens too
_LAST = "dialogue"


def _any_sample(rng: random.Random) -> Sample:
    names = [name for name in all_tasks() if name != _LAST]
    return all_tasks()[rng.choice(names)].make(rng)


def _right(sample: Sample, text: str) -> bool:
    assert sample.asks is not None
    return all_tasks()[sample.asks.task].check(sample.asks, text)


@task(_LAST, "short", _right)
def dialogue(rng: random.Random) -> Sample:
    # most conversations are short, and a row of training holds more of them
    room = _LEAST_CHARACTERS + round((_MOST_CHARACTERS - _LEAST_CHARACTERS) * rng.random() ** 1.5)
    earlier: list[Mapping[str, str]] = []
    while not earlier or rng.random() < 0.88:
        past = _any_sample(rng)
        said = [*past.messages, {"role": "assistant", "content": past.answer}]
        length = sum(len(m["content"]) for m in said)
        if past.held_out or length > _MOST_CHARACTERS:
            continue
        if earlier and length > room:
            break
        earlier += said
        room -= length
    asked = _any_sample(rng)
    return Sample(_LAST, (*earlier, *asked.messages), asked.answer, asks=asked)
