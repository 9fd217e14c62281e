"""Addition of long numbers with every column and carry, the last digit first."""

from __future__ import annotations

import random

from training.demo.tasks.base import Sample, single, task
from training.demo.tasks.phrasing import phrase

DIGITS = 6  # of the longest number
CORES = (
    "add {a} and {b} step by step",
    "add {a} and {b} step by step",
    "add {a} + {b} step by step",
    "add {a} + {b} with all carries",
    "add {a} and {b} with carries",
    "add {a} and {b} digit by digit",
    "add {a} and {b} column by column",
    "add {a} and {b} and show your work",
    "add {a} and {b}, showing every step",
    "show how to add {a} and {b}",
    "calculate {a} + {b} step by step",
    "solve {a} + {b} step by step",
    "do long addition with {a} and {b}",
)
QUESTIONS = (
    "Long addition: {a} + {b}",
    "Long addition of {a} and {b}",
    "What is {a} + {b}, step by step?",
    "{a} + {b} step by step",
    "{a} + {b} with carries",
    "Step by step: {a} + {b}",
)


@task("long_add", "long")
def long_add(rng: random.Random) -> Sample:
    lengths = (1, 2, 3, 3, 4, 4, 5, 5, DIGITS, DIGITS)
    a, b = (rng.randint(10 ** (d - 1), 10**d - 1) for d in rng.choices(lengths, k=2))
    lines, carry = [], 0
    width = max(len(str(a)), len(str(b)))
    for x, y in zip(reversed(str(a).zfill(width)), reversed(str(b).zfill(width)), strict=True):
        total = int(x) + int(y) + carry
        lines.append(f"{x} + {y} + {carry} = {total}, carry {total // 10}")
        carry = total // 10
    return single("long_add", phrase(rng, CORES, QUESTIONS, a=a, b=b), "\n".join([*lines, f"{a} + {b} = {a + b}."]))
