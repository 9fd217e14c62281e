"""Infill: text with holes ("__"). The answer is the full text, so that a hole and the text after it share a block."""

from __future__ import annotations

import random

from training.demo.tasks.arithmetic import LARGEST
from training.demo.tasks.base import Sample, single, task
from training.demo.tasks.phrasing import phrase

LARGEST_TERM = 99  # of sums


def _numbers(rng: random.Random) -> list[str]:
    step = rng.choice((1, 1, 2, 2, 3, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10, 20, 25, 50, 100, rng.randint(11, 100)))
    first, length = step * rng.randint(0, 12) if rng.random() < 0.5 else rng.randint(0, 60), rng.randint(5, 10)
    first = min(first, LARGEST - step * (length - 1))
    numbers = [str(first + step * i) for i in range(length)]
    return numbers[::-1] if rng.random() < 0.4 else numbers


def _multiples(rng: random.Random) -> list[str]:
    n, first = rng.randint(2, 12), rng.randint(1, 8)
    return [f"{n} x {i} = {n * i}" for i in range(first, first + rng.randint(3, 5))]


def _sums(rng: random.Random) -> list[str]:
    pairs = [(rng.randint(1, LARGEST_TERM), rng.randint(1, LARGEST_TERM)) for _ in range(rng.randint(2, 4))]
    return [f"{a} + {b} = {a + b}" for a, b in pairs]


def _hole(rng: random.Random, item: str) -> str:
    """Replaces one number of the item by a hole; in an equation any of the three."""
    parts = item.split(" ")
    parts[rng.choice([i for i, w in enumerate(parts) if w.isdigit()])] = "__"
    return " ".join(parts)


MARKS = ("__", "__", "__", "_", "___", "...", "?")
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
    "fill in the blank: {t}",
    "fill in: {t}",
    "fill in the gaps: {t}",
    "fill the gaps: {t}",
    "fill the blanks: {t}",
    "fill in the blanks of {t}",
    "fill in the missing number: {t}",
    "fill in the missing ones: {t}",
    "complete the sequence {t}",
    "complete the sequence: {t}",
    "complete the series: {t}",
    "complete the pattern: {t}",
    "complete the row: {t}",
    "finish the sequence {t}",
    "find what is missing: {t}",
    "replace the blanks: {t}",
    "write what is missing: {t}",
)
QUESTIONS = ("What is missing in {t}?", "Which numbers are missing: {t}", "What goes into the gaps? {t}", "{t}",
              "Which number is missing: {t}", "What is missing: {t}?", "What is missing here: {t}",
              "{t}: fill in the blanks", "{t}, what is missing?", "Which numbers go in the blanks? {t}",
              "What goes in the blanks: {t}")  # fmt: skip


@task("fill", "long")
def fill(rng: random.Random) -> Sample:
    items = rng.choice((_numbers, _multiples, _sums))(rng)
    holes = set(rng.sample(range(1, len(items) - 1), min(3, len(items) - 2)) if len(items) > 2 else [0])
    if " " in items[0]:
        holes |= {0, len(items) - 1}  # an equation determines its hole, a row of numbers needs its ends
    elif len(items) > 4 and rng.random() < 0.4:  # with an open end: two neighbors stay
        stays = rng.randrange(len(items) - 1)
        free = [i for i in range(len(items)) if i not in (stays, stays + 1)]
        holes = set(rng.sample(free, rng.randint(1, min(3, len(free)))))
    text = rng.choice((", ", ", ", ", ", " ") if " " not in items[0] else (", ",)).join(
        _hole(rng, item) if i in holes else item for i, item in enumerate(items)
    )
    # phrasing may strip a mark of punctuation from the end
    marks = MARKS[:-2] if len(items) - 1 in holes else MARKS
    mark = rng.choice(marks) if " " not in items[0] else "__"
    return single("fill", phrase(rng, CORES, QUESTIONS, t=text.replace("__", mark)), ", ".join(items) + ".")
