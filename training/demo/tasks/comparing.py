"""Comparison of two numbers."""

from __future__ import annotations

import random

from training.demo.tasks.arithmetic import LARGEST
from training.demo.tasks.base import Sample, single, task
from training.demo.tasks.phrasing import phrase

_LARGER, _SMALLER = ("larger", "bigger", "greater", "higher"), ("smaller", "less", "lower")
_SUPERLATIVES = {"largest": "larger", "biggest": "bigger", "smallest": "smaller", "larger": "larger",
                 "smaller": "smaller", "bigger": "bigger", "greater": "greater"}  # fmt: skip
_WHICH = (
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
    "Which is {w}: {a} or {b}?",
    "Which one is {w}, {a} or {b}?",
    "what is {w} {a} or {b}",
    "which is {w} {a} or {b}",
    "{a} or {b} which is {w}",
    "{a} and {b}: which one is {w}?",
    "{a} vs {b}, which is {w}?",
    "{a} versus {b}: which is {w}?",
    "Out of {a} and {b}, which is {w}?",
    "I have {a} and {b}. Which is {w}?",
    "Which number is {w}, {a} or is it {b}?",
    "Which of the two is {w}: {a} or {b}?",
    "Which of these is {w}: {a}, {b}?",
    "Tell me which is {w}, {a} or {b}.",
    "Say which is {w}: {a} or {b}.",
)
_IS = (
    "Is {a} {w} than {b}?",
    "Is {a} {w} than {b}?",
    "Tell me, is {a} {w} than {b}?",
    "Is the number {a} {w} than {b}?",
    "Is it true that {a} is {w} than {b}?",
    "{a} is {w} than {b}, right?",
    "{a} {w} than {b}?",
    "Would you say {a} is {w} than {b}?",
    "Is {a} a {w} number than {b}?",
    "is {a} really {w} than {b}",
    "I think {a} is {w} than {b}. Is that so?",
    "I say {a} is {w} than {b}. Right?",
    "{a} is {w} than {b}, true or false?",
    "True or false: {a} is {w} than {b}",
    "Does {a} count as {w} than {b}?",
    "Can you tell me if {a} is {w} than {b}?",
)
_SIGN = ("Is {a} {s} {b}?", "{a} {s} {b}?", "Is it true that {a} {s} {b}?")
_COMPARE = ("compare {a} and {b}", "compare {a} with {b}", "compare {a} to {b}", "compare the numbers {a} and {b}")
_PICKED = ("Which is the {m} of {a} and {b}?", "Which is the {m} number, {a} or {b}?",
           "What is the {m} of {a} and {b}?", "The {m} of {a} and {b}", "Which is the {m} one, {a} or {b}?",
           "What's the {m} number: {a} or {b}?", "{a} and {b}: the {m}?", "{m} of {a} and {b}", "{m}: {a} or {b}?",
           "Which is the {m}: {a} or {b}?")  # fmt: skip
_PICK = ("find the {m} of {a} and {b}", "tell me the {m} of {a} and {b}", "pick the {m} number: {a} or {b}")


def _says(a: int, word: str, b: int) -> str:
    """Returns the answer to "is a WORD than b?"."""
    if a == b:
        return f"No, {a} is equal to {b}."
    right = (a > b) == (word not in _SMALLER)
    return f"Yes, {a} is {word} than {b}." if right else f"No, {a} is not {word} than {b}."


def wording(rng: random.Random, a: str, b: str, among: bool = False) -> str:
    """Returns a question about `a` and `b`; with `among` one that also fits several numbers in `a`."""
    word = rng.choice(_LARGER + _SMALLER)
    if among:
        return phrase(rng, (), _WHICH[:11], a=a, b=b, w=word)
    superlative = rng.choice(list(_SUPERLATIVES))
    return phrase(rng, (*_COMPARE, *_PICK), (*_WHICH, *_IS, *_PICKED), a=a, b=b, w=word, m=superlative)


def comparison(rng: random.Random, a: int, b: int) -> Sample:
    """Returns a question about two numbers up to LARGEST."""
    word = rng.choice(_LARGER + _SMALLER)
    kind = rng.random()
    if 0.42 < kind < 0.5:
        word = "more"
    if kind < 0.5 or a == b:
        if kind < 0.12:
            word = rng.choice(("larger", "smaller"))
            prompt = phrase(rng, (), _SIGN, a=a, b=b, s=">" if word == "larger" else "<")
        else:
            prompt = phrase(rng, (), _IS, a=a, b=b, w=word)
        return single("compare", prompt, _says(a, word, b))
    if kind < 0.6:
        word = "larger"
        prompt = phrase(rng, _COMPARE, (), a=a, b=b)
    elif kind < 0.68:
        superlative = rng.choice(list(_SUPERLATIVES))
        word = _SUPERLATIVES[superlative]
        prompt = phrase(rng, _PICK, _PICKED, a=a, b=b, m=superlative)
    else:
        prompt = phrase(rng, (), _WHICH, a=a, b=b, w=word)
    best = max(a, b) if word in _LARGER else min(a, b)
    return single("compare", prompt, f"{best} is {word} than {a + b - best}.")


@task("compare", "short")
def compare(rng: random.Random) -> Sample:
    top = rng.choice((20, 99, 999, 999, LARGEST))
    a, b = rng.sample(range(top + 1), 2)
    kind = rng.random()
    if kind < 0.15:  # numbers that are close
        b = min(LARGEST, max(0, a + rng.choice((-1, 1, 10, -10, 100))))
    elif kind < 0.27:  # at the limit
        a, b = rng.sample((LARGEST, rng.choice((b, b, LARGEST - rng.randint(0, 9)))), 2)
    return comparison(rng, a, b)
