"""Comparison of two numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence

from runtime.demo.tasks.base import Sample, single, task
from runtime.demo.tasks.phrasing import Phrase, phrase

LARGER, SMALLER = ("larger", "bigger", "greater", "higher"), ("smaller", "less", "lower")
SUPERLATIVES = {"largest": "larger", "biggest": "bigger", "smallest": "smaller", "larger": "larger",
                 "smaller": "smaller", "bigger": "bigger", "greater": "greater"}  # fmt: skip
WHICH = (
    "Which is {w}, {a} or {b}?",
    "Which number is {w}: {a} or {b}?",
    "Which number is {w}, {a} or {b}?",
    "Which one is {w}: {a} or {b}?",
    "Which of {a} and {b} is {w}?",
    "What is {w}, {a} or {b}?",
    "What's {w}: {a} or {b}?",
    "What is {w}: {a} or {b}?",
    "{a} or {b}: which is {w}?",
    "{a} or {b}, what is {w}?",
    "Of {a} and {b}, which is {w}?",
    "Is {a} or {b} {w}?",
    "Between {a} and {b}, which is {w}?",
)
IS = (
    "Is {a} {w} than {b}?",
    "Is {a} {w} than {b}?",
    "Tell me, is {a} {w} than {b}?",
    "Is the number {a} {w} than {b}?",
    "Is it true that {a} is {w} than {b}?",
    "{a} is {w} than {b}, right?",
    "{a} {w} than {b}?",
    "Would you say {a} is {w} than {b}?",
)
SIGN = ("Is {a} {s} {b}?", "{a} {s} {b}?", "Is it true that {a} {s} {b}?")
COMPARE = ("compare {a} and {b}", "compare {a} with {b}", "compare {a} to {b}", "compare the numbers {a} and {b}")
PICKED = ("Which is the {m} of {a} and {b}?", "Which is the {m} number, {a} or {b}?",
           "What is the {m} of {a} and {b}?", "The {m} of {a} and {b}", "Which is the {m} one, {a} or {b}?",
           "What's the {m} number: {a} or {b}?")  # fmt: skip
PICK = ("find the {m} of {a} and {b}", "tell me the {m} of {a} and {b}", "pick the {m} number: {a} or {b}")


def says(a: int, word: str, b: int) -> str:
    """Returns the answer to "is a WORD than b?"."""
    if a == b:
        return f"No, {a} is equal to {b}."
    right = (a > b) == (word not in SMALLER)
    return f"Yes, {a} is {word} than {b}." if right else f"No, {a} is not {word} than {b}."


def comparison(
    rng: random.Random, phrase: Phrase, *, limits: Sequence[int], which: Sequence[str], statements: Sequence[str],
    picked: Sequence[str],
) -> Sample:  # fmt: skip
    """Returns a comparison of two numbers up to one of `limits`, in words of one of these lists of templates."""
    top = rng.choice(limits)
    a, b = rng.sample(range(top + 1), 2)
    if rng.random() < 0.15:  # numbers that are close
        b = max(0, a + rng.choice((-1, 1, 10, -10, 100)))
    word = rng.choice(LARGER + SMALLER)
    kind = rng.random()
    if 0.42 < kind < 0.5:
        word = "more"
    if kind < 0.5 or a == b:
        if kind < 0.12:
            word = rng.choice(("larger", "smaller"))
            prompt = phrase(rng, (), SIGN, a=a, b=b, s=">" if word == "larger" else "<")
        else:
            prompt = phrase(rng, (), statements, a=a, b=b, w=word)
        return single("compare", prompt, says(a, word, b))
    if kind < 0.6:
        word = "larger"
        prompt = phrase(rng, COMPARE, (), a=a, b=b)
    elif kind < 0.68:
        superlative = rng.choice(list(SUPERLATIVES))
        word = SUPERLATIVES[superlative]
        prompt = phrase(rng, PICK, picked, a=a, b=b, m=superlative)
    else:
        prompt = phrase(rng, (), which, a=a, b=b, w=word)
    best = max(a, b) if word in LARGER else min(a, b)
    return single("compare", prompt, f"{best} is {word} than {a + b - best}.")


@task("compare", "short")
def compare(rng: random.Random) -> Sample:
    return comparison(rng, phrase, limits=(20, 99, 999, 999), which=WHICH, statements=IS, picked=PICKED)
