"""Numbers in roman numerals."""

from __future__ import annotations

import random

from runtime.demo.tasks import roman as shipped
from runtime.demo.tasks.base import Sample, single
from training.demo.tasks.base import task
from training.demo.tasks.phrasing import phrase

_CORES = (
    *shipped.CORES, "write {n} in roman", "write {n} in roman numbers", "write {n} with roman numerals",
    "write {n} the roman way", "change {n} to roman numerals", "change {n} into a roman numeral",
    "convert {n} to a roman numeral", "convert the number {n} to roman numerals", "turn {n} into roman numerals",
    "give me the roman numeral for {n}", "give the roman numeral of {n}", "show me {n} in roman numerals",
    "tell me {n} in roman numerals", "tell me the roman numeral for {n}", "translate {n} into roman numerals",
    "put {n} in roman numerals",
)  # fmt: skip
_QUESTIONS = (
    *shipped.QUESTIONS, "The roman numeral for {n}", "roman numeral for {n}", "roman numerals: {n}",
    "roman numeral: {n}", "{n} in roman numbers", "{n} in roman", "{n} to roman numerals", "{n} to roman",
    "{n} roman", "What's the roman numeral for {n}?", "What is the roman numeral of {n}?",
    "What is {n} as a roman numeral?", "How is {n} written in roman numerals?",
    "How do I write {n} in roman numerals?", "How would a roman write {n}?", "How do you say {n} in roman numerals?",
    "How did the Romans write {n}?", "Which roman numeral is {n}?", "What does {n} look like in roman numerals?",
)  # fmt: skip


@task("roman", "short")
def roman(rng: random.Random) -> Sample:
    n = rng.randint(1, rng.choice((20, 100, 1000, shipped.LARGEST)))
    prompt = phrase(rng, _CORES, _QUESTIONS, n=n)
    return single(
        "roman", prompt.replace("roman", "Roman") if rng.random() < 0.4 else prompt, shipped.in_roman(n) + "."
    )
