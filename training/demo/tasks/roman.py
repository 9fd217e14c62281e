"""Numbers in roman numerals."""

from __future__ import annotations

import random

from training.demo.tasks.base import Sample, single, task
from training.demo.tasks.phrasing import phrase

_VALUES = (
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"),
    (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
)  # fmt: skip
LARGEST = 3999
CORES = (
    "write {n} in roman numerals",
    "write {n} in roman numerals",
    "write {n} as a roman numeral",
    "write the number {n} in roman numerals",
    "convert {n} to roman numerals",
    "convert {n} into roman numerals",
    "turn {n} into a roman numeral",
    "give me {n} in roman numerals",
    "show {n} in roman numerals",
    "say {n} in roman numerals",
    "express {n} in roman numerals",
    "write {n} in roman",
    "write {n} in roman numbers",
    "write {n} with roman numerals",
    "write {n} the roman way",
    "change {n} to roman numerals",
    "change {n} into a roman numeral",
    "convert {n} to a roman numeral",
    "convert the number {n} to roman numerals",
    "turn {n} into roman numerals",
    "give me the roman numeral for {n}",
    "give the roman numeral of {n}",
    "show me {n} in roman numerals",
    "tell me {n} in roman numerals",
    "tell me the roman numeral for {n}",
    "translate {n} into roman numerals",
    "put {n} in roman numerals",
)
QUESTIONS = (
    "What is {n} in roman numerals?",
    "What's {n} in roman numerals?",
    "How do you write {n} in roman numerals?",
    "How do the Romans write {n}?",
    "What is the roman numeral for {n}?",
    "{n} in roman numerals",
    "{n} as a roman numeral",
    "The roman numeral of {n}",
    "The roman numeral for {n}",
    "roman numeral for {n}",
    "roman numerals: {n}",
    "roman numeral: {n}",
    "{n} in roman numbers",
    "{n} in roman",
    "{n} to roman numerals",
    "{n} to roman",
    "{n} roman",
    "What's the roman numeral for {n}?",
    "What is the roman numeral of {n}?",
    "What is {n} as a roman numeral?",
    "How is {n} written in roman numerals?",
    "How do I write {n} in roman numerals?",
    "How would a roman write {n}?",
    "How do you say {n} in roman numerals?",
    "How did the Romans write {n}?",
    "Which roman numeral is {n}?",
    "What does {n} look like in roman numerals?",
)


def in_roman(n: int) -> str:
    """Returns the Roman numeral of 1 <= n <= 3999: 42 -> "XLII"."""
    text = ""
    for value, sign in _VALUES:
        while n >= value:
            text, n = text + sign, n - value
    return text


@task("roman", "short")
def roman(rng: random.Random) -> Sample:
    n = rng.randint(1, rng.choice((20, 100, 1000, LARGEST)))
    prompt = phrase(rng, CORES, QUESTIONS, n=n)
    return single("roman", prompt.replace("roman", "Roman") if rng.random() < 0.4 else prompt, in_roman(n) + ".")
