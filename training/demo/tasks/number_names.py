"""Names of numbers up to 999,999."""

from __future__ import annotations

import random

from training.demo.tasks.base import Sample, single, task
from training.demo.tasks.phrasing import phrase

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
    "spell out {n}",
    "spell out the number {n}",
    "spell out {n} in words",
    "spell out {n} in English",
    "spell the number {n}",
    "spell {n}",
    "spell {n} in words",
    "write {n} in letters",
    "write {n} in English",
    "write {n} in English words",
    "write {n} using words",
    "write the number {n} out in words",
    "write {n} out",
    "write {n} with words",
    "give {n} in words",
    "show {n} in words",
    "show me {n} in words",
    "show me how to write {n} in words",
    "read {n} in words",
    "read out {n}",
    "read the number {n} out",
    "tell me {n} in words",
    "tell me how to say {n}",
    "tell me how {n} is written in words",
    "say {n} in English",
    "translate {n} into words",
    "change {n} into words",
    "convert the number {n} to words",
    "turn the number {n} into words",
    "name the number {n}",
    "put the number {n} into words",
)
QUESTIONS = (
    "What is {n} in words?",
    "What's {n} in words?",
    "How do you write {n} in words?",
    "How do you say {n} in words?",
    "How is {n} written in words?",
    "{n} in words",
    "The number {n} in words",
    "What's the number {n} in words?",
    "How do I write {n} in words?",
    "How do you spell {n}?",
    "How do you spell the number {n}?",
    "How do I spell {n} in words?",
    "How is {n} spelled?",
    "How do you say {n}?",
    "How do you say the number {n} in English?",
    "How do you read {n}?",
    "How is the number {n} written out?",
    "How would you write {n} in words?",
    "What is {n} written out?",
    "What is the name of the number {n}?",
    "What is {n} called?",
    "{n} written out",
    "{n} written in words",
    "{n} as words",
    "{n} in English",
    "{n} spelled out",
    "in words: {n}",
    "{n}, in words",
    "the words for {n}",
    "What are the words for {n}?",
)


@task("number_words", "long")
def number_names(rng: random.Random) -> Sample:
    n = rng.randint(0, 10 ** rng.choice((2, 3, 4, 4, 5, 6, 6)) - 1)
    if rng.random() < 0.2:  # zeros
        n = n // (scale := 10 ** rng.randint(1, 4)) * scale + n % rng.choice((1, 10))
    return single("number_words", phrase(rng, CORES, QUESTIONS, n=n), spell_out(n) + ".")
