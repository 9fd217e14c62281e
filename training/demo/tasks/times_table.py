"""Times tables, one line per multiple."""

from __future__ import annotations

import random

from training.demo.tasks.base import Sample, single, task
from training.demo.tasks.phrasing import phrase

LARGEST, ROWS = 20, 15
CORES = (
    "write the times table of {n} up to {k}",
    "give me the times table of {n} up to {k}",
    "show the times table of {n} up to {k}",
    "write {n} times 1 to {n} times {k}",
    "multiply {n} by 1 to {k}",
    "write the times table of {n} to {k}",
    "list the times table of {n} up to {k}",
    "write the multiplication table of {n} up to {k}",
    "show me the multiplication table for {n} up to {k}",
    "give me the table of {n} up to {k}",
    "write the {n} times table up to {k}",
    "show the {n} times table up to {k}",
    "tell me the {n} times table up to {k}",
)
QUESTIONS = (
    "What is the times table of {n} up to {k}?",
    "The times table of {n} up to {k}",
    "Times table of {n} up to {k}",
    "{n} times table up to {k}",
    "Times table: {n} up to {k}",
)
OPEN = (
    "write the times table of {n}",
    "write the {n} times table",
    "show me the {n} times table",
    "give me the times table of {n}",
    "give me the multiplication table of {n}",
    "tell me the times table for {n}",
)
OPEN_QUESTIONS = (
    "What is the times table of {n}?",
    "{n} times table",
    "Times table of {n}",
    "The multiplication table of {n}",
)


@task("times_table", "long")
def times_table(rng: random.Random) -> Sample:
    n, k = rng.randint(1, LARGEST), rng.randint(1, ROWS)
    open_ended = rng.random() < 0.2
    if open_ended:
        k = 10
    lines = [f"{n} x {i} = {n * i}" for i in range(1, k + 1)]
    prompt = phrase(rng, OPEN, OPEN_QUESTIONS, n=n) if open_ended else phrase(rng, CORES, QUESTIONS, n=n, k=k)
    return single("times_table", prompt, "\n".join(lines))
