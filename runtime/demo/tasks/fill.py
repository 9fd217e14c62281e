"""Infill: text with holes ("__"). The answer is the full text, so that a hole and the text after it share a block."""

from __future__ import annotations

import random

from runtime.demo.tasks.base import Sample, single, task
from runtime.demo.tasks.phrasing import phrase


def _numbers(rng: random.Random) -> list[str]:
    first, step, length = rng.randint(0, 60), rng.choice((1, 1, 2, 5, 10)), rng.randint(6, 10)
    return [str(first + step * i) for i in range(length)]


def multiples(rng: random.Random) -> list[str]:
    n, first = rng.randint(2, 12), rng.randint(1, 8)
    return [f"{n} x {i} = {n * i}" for i in range(first, first + rng.randint(3, 5))]


def sums(rng: random.Random) -> list[str]:
    pairs = [(rng.randint(1, 49), rng.randint(1, 49)) for _ in range(rng.randint(2, 4))]
    return [f"{a} + {b} = {a + b}" for a, b in pairs]


def with_hole(rng: random.Random, item: str) -> str:
    """Replaces one number of the item by a hole; in an equation any of the three."""
    parts = item.split(" ")
    parts[rng.choice([i for i, w in enumerate(parts) if w.isdigit()])] = "__"
    return " ".join(parts)


CORES = (
    "fill in the blanks: {t}",
    "fill in the blanks: {t}",
    "fill the gaps in {t}",
    "fill the blanks in {t}",
    "fill in what is missing: {t}",
    "fill in the missing numbers: {t}",
    "find the missing numbers: {t}",
    "complete {t}",
    "complete this: {t}",
    "complete the list {t}",
)
QUESTIONS = ("What is missing in {t}?", "Which numbers are missing: {t}", "What goes into the gaps? {t}", "{t}")


@task("fill", "long")
def fill(rng: random.Random) -> Sample:
    items = rng.choice((_numbers, multiples, sums))(rng)
    holes = set(rng.sample(range(1, len(items) - 1), min(3, len(items) - 2)) if len(items) > 2 else [0])
    if " " in items[0]:
        holes |= {0, len(items) - 1}  # an equation determines its hole, a row of numbers needs its ends
    text = ", ".join(with_hole(rng, item) if i in holes else item for i, item in enumerate(items))
    return single("fill", phrase(rng, CORES, QUESTIONS, t=text), ", ".join(items) + ".")
