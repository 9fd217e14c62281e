"""Comparison of two numbers."""

from __future__ import annotations

import random

from runtime.demo.tasks import comparing as shipped
from runtime.demo.tasks.base import Sample, single
from training.demo.tasks.base import task
from training.demo.tasks.phrasing import phrase

_WHICH = (
    *shipped.WHICH, "Which is {w}: {a} or {b}?", "Which one is {w}, {a} or {b}?", "what is {w} {a} or {b}",
    "which is {w} {a} or {b}", "{a} or {b} which is {w}", "{a} and {b}: which one is {w}?",
    "{a} vs {b}, which is {w}?", "{a} versus {b}: which is {w}?", "Out of {a} and {b}, which is {w}?",
    "I have {a} and {b}. Which is {w}?", "Which number is {w}, {a} or is it {b}?",
    "Which of the two is {w}: {a} or {b}?", "Which of these is {w}: {a}, {b}?", "Tell me which is {w}, {a} or {b}.",
    "Say which is {w}: {a} or {b}.",
)  # fmt: skip
_IS = (
    *shipped.IS, "Is {a} a {w} number than {b}?", "is {a} really {w} than {b}",
    "I think {a} is {w} than {b}. Is that so?", "I say {a} is {w} than {b}. Right?",
    "{a} is {w} than {b}, true or false?", "True or false: {a} is {w} than {b}", "Does {a} count as {w} than {b}?",
    "Can you tell me if {a} is {w} than {b}?",
)  # fmt: skip
_PICKED = (
    *shipped.PICKED, "{a} and {b}: the {m}?", "{m} of {a} and {b}", "{m}: {a} or {b}?",
    "Which is the {m}: {a} or {b}?",
)  # fmt: skip


@task("compare", "short")
def compare(rng: random.Random) -> Sample:
    top = rng.choice((20, 99, 999, 999, 1010))
    a, b = rng.sample(range(top + 1), 2)
    if rng.random() < 0.15:  # numbers that are close
        b = max(0, a + rng.choice((-1, 1, 10, -10, 100)))
    word = rng.choice(shipped.LARGER + shipped.SMALLER)
    kind = rng.random()
    if 0.42 < kind < 0.5:
        word = "more"
    if kind < 0.5 or a == b:
        if kind < 0.12:
            word = rng.choice(("larger", "smaller"))
            prompt = phrase(rng, (), shipped.SIGN, a=a, b=b, s=">" if word == "larger" else "<")
        else:
            prompt = phrase(rng, (), _IS, a=a, b=b, w=word)
        return single("compare", prompt, shipped.says(a, word, b))
    if kind < 0.6:
        word = "larger"
        prompt = phrase(rng, shipped.COMPARE, (), a=a, b=b)
    elif kind < 0.68:
        superlative = rng.choice(list(shipped.SUPERLATIVES))
        word = shipped.SUPERLATIVES[superlative]
        prompt = phrase(rng, shipped.PICK, _PICKED, a=a, b=b, m=superlative)
    else:
        prompt = phrase(rng, (), _WHICH, a=a, b=b, w=word)
    best = max(a, b) if word in shipped.LARGER else min(a, b)
    return single("compare", prompt, f"{best} is {word} than {a + b - best}.")
