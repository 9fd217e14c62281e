"""A conversation that wanders: some exchanges about other things, then a question that has nothing to do with them.

The earlier exchanges are never of the held-out split, so that no held-out question is answered in training.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from runtime.demo.tasks.base import Sample, all_tasks, task
from runtime.demo.tasks.followup import recall

_LEAST_CHARACTERS, _MOST_CHARACTERS = 60, 500  # of all earlier turns; a digit is a token, so this bounds tokens too
_LAST = "dialogue"


_NAMELESS = ("add", "subtract", "multiply", "compare", "count", "sort", "spell", "reverse", "units", "number_words")


def _any_sample(rng: random.Random, names: Sequence[str]) -> Sample:
    return all_tasks()[rng.choice(names)].make(rng)


def _right(sample: Sample, text: str) -> bool:
    assert sample.asks is not None
    return all_tasks()[sample.asks.task].check(sample.asks, text)


def _exchanges(rng: random.Random, names: Sequence[str]) -> list[Mapping[str, str]]:
    """Questions of these tasks with their answers; most often few, since a row of training holds more short ones."""
    room = _LEAST_CHARACTERS + round((_MOST_CHARACTERS - _LEAST_CHARACTERS) * rng.random() ** 1.5)
    turns: list[Mapping[str, str]] = []
    while not turns or rng.random() < 0.88:
        past = _any_sample(rng, names)
        said = [*past.messages, {"role": "assistant", "content": past.answer}]
        length = sum(len(m["content"]) for m in said)
        if past.held_out or length > _MOST_CHARACTERS:
            continue
        if turns and length > room:
            break
        turns += said
        room -= length
    return turns


@task(_LAST, "short", _right)
def dialogue(rng: random.Random) -> Sample:
    if rng.random() < 0.08:  # the name told at the start is asked for at the end
        asked = recall(rng)
        meet, hello, question = asked.messages
        return Sample(_LAST, (meet, hello, *_exchanges(rng, _NAMELESS), question), asked.answer, asks=asked)
    names = [name for name in all_tasks() if name != _LAST]
    earlier, asked = _exchanges(rng, names), _any_sample(rng, names)
    return Sample(_LAST, (*earlier, *asked.messages), asked.answer, asks=asked)
