"""Names of numbers up to 999,999."""

from __future__ import annotations

import random

from runtime.demo.tasks.base import Sample, single, task
from runtime.demo.tasks.phrasing import phrase

_SMALL = """
zero one two three four five six seven eight nine ten
eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen
""".split()  # noqa: SIM905
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()  # noqa: SIM905


def spell_out(n: int) -> str:
    """Returns the English name of 0 <= n <= 999,999: 42 -> "forty-two"."""
    if n < 20:
        return _SMALL[n]
    if n < 100:
        return _TENS[n // 10 - 2] + (f"-{_SMALL[n % 10]}" if n % 10 else "")
    unit, name = (100, "hundred") if n < 1000 else (1000, "thousand")
    rest = f" {spell_out(n % unit)}" if n % unit else ""
    return f"{spell_out(n // unit)} {name}{rest}"


CORES = (
    "write {n} in words",
    "write {n} in words",
    "write the number {n} in words",
    "write {n} as words",
    "write out {n}",
    "write out the number {n} in words",
    "say {n} in words",
    "say the number {n} in words",
    "spell the number {n} in words",
    "give me {n} in words",
    "put {n} into words",
    "turn {n} into words",
    "convert {n} to words",
    "express {n} in words",
)
QUESTIONS = (
    "What is {n} in words?",
    "What's {n} in words?",
    "How do you write {n} in words?",
    "How do you say {n} in words?",
    "How is {n} written in words?",
    "{n} in words",
    "The number {n} in words",
)


@task("number_words", "long")
def number_names(rng: random.Random) -> Sample:
    n = rng.randint(0, 10 ** rng.choice((2, 3, 4, 5, 6, 6, 6)) - 1)
    return single("number_words", phrase(rng, CORES, QUESTIONS, n=n), spell_out(n) + ".")
