"""Conversations with unrelated exchanges before the last question.

The earlier exchanges are never of the held-out split, so that no held-out question is answered in training.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from training.demo.tasks.base import Sample, all_tasks, task
from training.demo.tasks.followup import recall

_MIN_CHARACTERS, _MAX_CHARACTERS, _VERY_MANY = (
    60,
    600,
    2400,
)  # of all earlier turns; a digit is a token, so this limits tokens too
_LAST = "dialogue"


_NAMELESS = (
    "add",
    "subtract",
    "multiply",
    "compare",
    "count",
    "sort",
    "spell",
    "reverse",
    "units",
    "number_words",
    "about",
)
_ANY_TOPIC = ("story_any",)  # long words are misspelled too often to measure the effect of earlier turns
_WITH_TOOLS = ("tool_call", "tool_answer", "tool_offered")  # these begin with a system message


def _any_sample(rng: random.Random, names: Sequence[str]) -> Sample:
    return all_tasks()[rng.choice(names)].make(rng)


def _exchanges(rng: random.Random, names: Sequence[str]) -> list[Mapping[str, str]]:
    """Returns questions of these tasks with their answers. Mostly few, since more short documents fit into a row."""
    characters_left = _MIN_CHARACTERS + round((_MAX_CHARACTERS - _MIN_CHARACTERS) * rng.random() ** 1.5)
    more = 0.88
    if rng.random() < 0.04:
        characters_left, more = rng.randint(_MAX_CHARACTERS, _VERY_MANY), 1.0
    turns: list[Mapping[str, str]] = []
    while not turns or rng.random() < more:
        past = _any_sample(rng, names)
        exchange = [*past.messages, {"role": "assistant", "content": past.answer}]
        length = sum(len(m["content"]) for m in exchange)
        if past.held_out or length > _MAX_CHARACTERS:
            continue
        if turns and length > characters_left:
            break
        turns += exchange
        characters_left -= length
    return turns


@task(_LAST, "short")
def dialogue(rng: random.Random) -> Sample:
    if rng.random() < 0.08:  # the last question asks for the name that the first turn gives
        asked = recall(rng)
        meet, hello, question = asked.messages
        return Sample(_LAST, (meet, hello, *_exchanges(rng, _NAMELESS), question), asked.answer, asks=asked)
    names = [name for name in all_tasks() if name not in (_LAST, *_WITH_TOOLS, *_ANY_TOPIC)]
    earlier, asked = _exchanges(rng, names), _any_sample(rng, names)
    return Sample(_LAST, (*earlier, *asked.messages), asked.answer, asks=asked)
