"""Questions that refer to earlier turns: the last result, or the user's name, which may be unknown."""

from __future__ import annotations

import random

from runtime.demo.tasks import followup as shipped
from runtime.demo.tasks.base import Sample, single, turns
from runtime.demo.tasks.phrasing import typed
from training.demo.tasks.arithmetic import wording
from training.demo.tasks.base import task

_MORE_AGAIN = {
    "+": (
        "What about plus {k}?", "Increase it by {k}.", "Add another {k}.", "add {k} more", "And now plus {k}?",
        "Put {k} on top.", "Now {k} more.", "and with {k} added?", "What is that plus {k}?",
        "What is the result plus {k}?", "and {k} added", "Then plus {k}?",
    ),
    "-": (
        "What about minus {k}?", "Decrease it by {k}.", "Reduce it by {k}.", "take {k} off", "take off {k}",
        "Now take {k} away.", "And now minus {k}?", "What is that minus {k}?", "What is the result minus {k}?",
        "Remove {k}.", "Take {k} away from that.", "Then minus {k}?", "and without {k}?",
    ),
    "x": (
        "What about times {k}?", "What is that times {k}?", "And that times {k}?", "Then times {k}?",
        "multiply the result by {k}", "and now times {k}?", "What is the result times {k}?",
    ),
}  # fmt: skip
_AGAIN = {sign: (*forms, *_MORE_AGAIN.get(sign, ())) for sign, forms in shipped.AGAIN.items()}


@task("followup", "short")
def followup(rng: random.Random) -> Sample:
    if rng.random() < 0.2:
        return shipped.recall(rng)
    if rng.random() < 0.05:
        return single("followup", typed(rng, rng.choice(shipped.RECALL)), "I do not know your name.")
    sign = rng.choice("+-x")
    top = rng.choice((60, 60, 400))
    a, b = (rng.randint(1, 12), rng.randint(1, 12)) if sign == "x" else (rng.randint(0, top), rng.randint(0, top))
    if sign == "-" and a < b:
        a, b = b, a
    value = shipped.apply(a, sign, b)
    contents = [wording(rng, a, sign, b), f"{a} {sign} {b} = {value}."]
    for _ in range(rng.choice((1, 1, 2))):
        sign = rng.choice("+-x") if value <= 100 else rng.choice("+-")
        top = 9 if sign == "x" else min(rng.choice((10, 99)), max(value, 2)) if sign == "-" else rng.choice((10, 99))
        k = rng.randint(min(2, top), top)
        word = shipped.DIGITS[k] if k <= 10 and rng.random() < 0.5 else str(k)
        contents.append(typed(rng, rng.choice(_AGAIN[sign]).format(k=word)))
        contents.append(f"{value} {sign} {k} = {shipped.apply(value, sign, k)}.")
        value = shipped.apply(value, sign, k)
    return Sample("followup", turns(*contents[:-1]), contents[-1])
