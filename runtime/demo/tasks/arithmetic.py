"""Sums, differences and products of small numbers, and comparisons."""

from __future__ import annotations

import random

from runtime.demo.tasks.base import Sample, single, task, typed

_ADD = (
    "Solve: {a} + {b}.",
    "Solve: {a} + {b}",
    "Solve {a} + {b}.",
    "What is {a} + {b}?",
    "What is {a} plus {b}?",
    "{a} + {b}",
    "{a} + {b} =",
    "{a}+{b}",
    "Add {a} and {b}.",
    "Please add {a} and {b}.",
    "How much is {a} + {b}?",
    "Calculate {a} + {b}.",
    "What is the sum of {a} and {b}?",
)
_SUBTRACT = (
    "Solve: {a} - {b}.",
    "Solve: {a} - {b}",
    "Solve {a} - {b}.",
    "What is {a} - {b}?",
    "What is {a} minus {b}?",
    "{a} - {b}",
    "{a} - {b} =",
    "{a}-{b}",
    "Subtract {b} from {a}.",
    "Please subtract {b} from {a}.",
    "How much is {a} - {b}?",
    "Calculate {a} - {b}.",
    "Take {b} away from {a}.",
)
_PRODUCTS = (
    "Solve: {e}.",
    "Solve: {e}",
    "Solve {e}.",
    "What is {e}?",
    "{e}",
    "{e} =",
    "How much is {e}?",
    "Calculate {e}.",
    "Please solve {e}.",
    "Tell me {e}.",
    "Work out {e}.",
    "And what is {e}?",
)
_MULTIPLY = (
    *(pattern.format(e=f"{{a}} {sign} {{b}}") for sign in ("x", "*", "times") for pattern in _PRODUCTS),
    "Multiply {a} by {b}.",
    "Multiply {a} and {b}.",
    "What is the product of {a} and {b}?",
    "{a}x{b}",
    "{a}*{b}",
)


@task("add", "short")
def add(rng: random.Random) -> Sample:
    a, b = rng.randint(0, 99), rng.randint(0, 99)
    return single("add", typed(rng, rng.choice(_ADD).format(a=a, b=b)), f"{a} + {b} = {a + b}.")


@task("subtract", "short")
def subtract(rng: random.Random) -> Sample:
    a, b = rng.randint(0, 99), rng.randint(0, 99)
    if a < b and rng.random() < 0.7:  # some results below zero, most above
        a, b = b, a
    return single("subtract", typed(rng, rng.choice(_SUBTRACT).format(a=a, b=b)), f"{a} - {b} = {a - b}.")


@task("multiply", "short")
def multiply(rng: random.Random) -> Sample:
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    return single("multiply", typed(rng, rng.choice(_MULTIPLY).format(a=a, b=b)), f"{a} x {b} = {a * b}.")


@task("compare", "short")
def compare(rng: random.Random) -> Sample:
    top = rng.choice((20, 99, 999))
    a, b = rng.sample(range(top + 1), 2)
    word = rng.choice(("larger", "bigger", "smaller", "smaller"))
    best = min(a, b) if word == "smaller" else max(a, b)
    other = a + b - best
    if rng.random() < 0.5:
        prompt = rng.choice(
            ("Which is {w}, {a} or {b}?", "Which number is {w}: {a} or {b}?", "What is {w}, {a} or {b}?")
        ).format(w=word, a=a, b=b)
        return single("compare", typed(rng, prompt), f"{best} is {word} than {other}.")
    prompt = rng.choice(("Is {a} {w} than {b}?", "Tell me, is {a} {w} than {b}?")).format(w=word, a=a, b=b)
    answer = f"Yes, {a} is {word} than {b}." if a == best else f"No, {a} is not {word} than {b}."
    return single("compare", typed(rng, prompt), answer)
