"""Conversations with unrelated exchanges before the last question, half of them of the same task.

The earlier exchanges are never of the held-out split, so that no held-out question is answered in training.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from training.demo.tasks.arithmetic import wording
from training.demo.tasks.base import Sample, all_tasks, single, task
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


# Tasks whose questions are also asked several times in a row.
_REPEATED = (
    *("add",) * 5, *("subtract",) * 3, *("multiply",) * 2, *("sort",) * 2, "compare", "count", "spell", "reverse",
    "units", "roman", "number_words", "json", "near_miss", "beyond",
)  # fmt: skip
_REPEATED_FRACTION = 0.5
_SIGNS = {"add": "+", "subtract": "-", "multiply": "x"}


def _calculations(rng: random.Random, name: str, count: int) -> list[Sample]:
    """Returns independent calculations in one wording. Some share an operand, or digits, with the one before."""
    sign, seed = _SIGNS[name], rng.random()
    top = 12 if name == "multiply" else rng.choice((49, 99, 99, 999))
    made: list[Sample] = []
    a, b = rng.randint(0, top), rng.randint(0, top)
    for _ in range(count):
        kind = rng.random()
        if kind < 0.6:
            a, b = rng.randint(0, top), rng.randint(0, rng.choice((9, top)))
        elif kind < 0.75:
            a = rng.randint(0, top)
        elif kind < 0.9:
            b = rng.randint(0, top)
        else:
            a, b = b, a
        if sign == "-" and a < b and rng.random() < 0.7:
            a, b = b, a
        result = a + b if sign == "+" else a - b if sign == "-" else a * b
        prompt = f"What is {a} {sign} {b}?" if seed < 0.3 else wording(random.Random(seed), a, sign, b)
        made.append(single(name, prompt, f"{a} {sign} {b} = {result}."))
    return made


def _repeated(rng: random.Random) -> list[Sample]:
    """Returns two to five independent questions of one task."""
    name, count = rng.choice(_REPEATED), rng.choice((2, 2, 2, 3, 3, 4, 5))
    if name in _SIGNS and rng.random() < 0.7:
        return _calculations(rng, name, count)
    return [all_tasks()[name].make(rng) for _ in range(count)]


@task(_LAST, "short")
def dialogue(rng: random.Random) -> Sample:
    if rng.random() < 0.08:  # the last question asks for the name that the first turn gives
        asked = recall(rng)
        meet, hello, question = asked.messages
        return Sample(_LAST, (meet, hello, *_exchanges(rng, _NAMELESS), question), asked.answer, asks=asked)
    if rng.random() < _REPEATED_FRACTION:
        *before, asked = _repeated(rng)
        before = [sample for sample in before if not sample.held_out]
        turns = [m for sample in before for m in (*sample.messages, {"role": "assistant", "content": sample.answer})]
        return Sample(_LAST, (*turns, *asked.messages), asked.answer, asks=asked)
    names = [name for name in all_tasks() if name not in (_LAST, *_WITH_TOOLS, *_ANY_TOPIC)]
    earlier, asked = _exchanges(rng, names), _any_sample(rng, names)
    return Sample(_LAST, (*earlier, *asked.messages), asked.answer, asks=asked)
