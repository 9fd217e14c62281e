"""Later turns that need the earlier ones: the last result, or the user's name (which may not have been told)."""

from __future__ import annotations

import random

from runtime.demo.tasks import words
from runtime.demo.tasks.base import Sample, single, task, turns, typed
from runtime.demo.tasks.talk import HELP

_DIGITS = "zero one two three four five six seven eight nine ten".split()  # noqa: SIM905
_AGAIN = {
    "+": ("And plus {k}?", "And plus {k}", "Now add {k}.", "Add {k}.", "Plus {k}?"),
    "-": ("And minus {k}?", "And minus {k}", "Now subtract {k}.", "Subtract {k}.", "Minus {k}?"),
    "x": ("And times {k}?", "And times {k}", "Now multiply by {k}.", "Multiply that by {k}.", "Times {k}?"),
}
_MEET = ("Hello, I am {n}.", "Hi, I am {n}.", "My name is {n}.", "Hello, my name is {n}.", "I am {n}.")
_RECALL = (
    "What is my name?",
    "What's my name?",
    "Who am I?",
    "Do you know my name?",
    "Tell me my name.",
    "Say my name.",
)


def _apply(a: int, sign: str, b: int) -> int:
    return a + b if sign == "+" else a - b if sign == "-" else a * b


def recall(rng: random.Random) -> Sample:
    """The user's name, told in the first turn, is asked in the last."""
    name = words.name(rng)
    meet, question = rng.choice(_MEET).format(n=name), rng.choice(_RECALL)
    messages = turns(typed(rng, meet), f"Hello, {name}! {HELP}", typed(rng, question))
    return Sample("followup", messages, f"Your name is {name}.")


@task("followup", "short")
def followup(rng: random.Random) -> Sample:
    if rng.random() < 0.2:
        return recall(rng)
    if rng.random() < 0.05:
        return single("followup", typed(rng, rng.choice(_RECALL)), "I do not know your name.")
    sign = rng.choice("+-x")
    a, b = (rng.randint(1, 12), rng.randint(1, 12)) if sign == "x" else (rng.randint(0, 60), rng.randint(0, 39))
    if sign == "-" and a < b:
        a, b = b, a
    said = [rng.choice(("Solve: {a} {s} {b}.", "What is {a} {s} {b}?", "{a} {s} {b}")).format(a=a, s=sign, b=b)]
    value = _apply(a, sign, b)
    said.append(f"{a} {sign} {b} = {value}.")
    for _ in range(rng.choice((1, 1, 2))):
        sign = rng.choice("+-x") if value <= 50 else rng.choice("+-")
        top = 5 if sign == "x" else min(10, value) if sign == "-" else 10
        k = rng.randint(min(2, top), top)
        said.append(typed(rng, rng.choice(_AGAIN[sign]).format(k=rng.choice((str(k), _DIGITS[k])))))
        said.append(f"{value} {sign} {k} = {_apply(value, sign, k)}.")
        value = _apply(value, sign, k)
    return Sample("followup", turns(*said[:-1]), said[-1])
