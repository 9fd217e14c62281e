"""Unit conversions to the smaller unit and, without remainder, to the larger one."""

from __future__ import annotations

import random

from training.demo.tasks.base import Sample, single, task
from training.demo.tasks.phrasing import phrase

METRIC, OTHER = 1000, 60  # largest numbers of the larger unit, where digits stay and where they do not
UNITS = (  # names of one unit, names of the other, factor, largest number of the larger unit
    (("km", "kilometers", "kilometres"), ("m", "meters", "metres"), 1000, METRIC),
    (("m", "meters", "metres"), ("cm", "centimeters", "centimetres"), 100, METRIC),
    (("cm", "centimeters"), ("mm", "millimeters"), 10, METRIC),
    (("m", "meters"), ("mm", "millimeters"), 1000, METRIC),
    (("kg", "kilograms", "kilos"), ("g", "grams"), 1000, METRIC),
    (("tons", "tonnes", "t"), ("kg", "kilograms"), 1000, METRIC),
    (("liters", "litres", "l"), ("ml", "milliliters"), 1000, METRIC),
    (("dollars",), ("cents",), 100, METRIC),
    (("euros",), ("cents",), 100, METRIC),
    (("hours", "h"), ("minutes", "min"), 60, OTHER),
    (("minutes", "min"), ("seconds", "s"), 60, OTHER),
    (("days",), ("hours",), 24, OTHER),
    (("weeks",), ("days",), 7, OTHER),
    (("years",), ("months",), 12, OTHER),
    (("feet", "ft"), ("inches", "in"), 12, OTHER),
    (("yards",), ("feet",), 3, OTHER),
    (("pounds", "lb"), ("ounces", "oz"), 16, OTHER),
)
Pair = tuple[tuple[str, ...], tuple[str, ...], int, int]
_ONE = {"feet": "foot", "inches": "inch", "pounds": "pound"}
CORES = (
    "convert {n} {u} to {v}",
    "convert {n} {u} to {v}",
    "convert {n} {u} into {v}",
    "change {n} {u} into {v}",
    "turn {n} {u} into {v}",
    "express {n} {u} in {v}",
    "give me {n} {u} in {v}",
    "tell me {n} {u} in {v}",
    "write {n} {u} in {v}",
    "tell me how many {v} {n} {u} are",
    "tell me how many {v} are in {n} {u}",
    "tell me how many {v} there are in {n} {u}",
    "tell me how much {n} {u} is in {v}",
    "convert {n} {u} in {v}",
    "convert to {v}: {n} {u}",
    "convert this to {v}: {n} {u}",
    "calculate how many {v} {n} {u} are",
    "work out {n} {u} in {v}",
    "find out how many {v} are in {n} {u}",
    "show {n} {u} in {v}",
    "say {n} {u} in {v}",
    "make {v} out of {n} {u}",
)
QUESTIONS = (
    "How many {v} are {n} {u}?",
    "How many {v} are in {n} {u}?",
    "How many {v} are there in {n} {u}?",
    "How many {v} in {n} {u}?",
    "How many {v} is {n} {u}?",
    "How many {v} do {n} {u} have?",
    "How many {v} make {n} {u}?",
    "How much is {n} {u} in {v}?",
    "What is {n} {u} in {v}?",
    "What's {n} {u} in {v}?",
    "What are {n} {u} in {v}?",
    "{n} {u} in {v}",
    "{n} {u} in {v}?",
    "{n} {u} to {v}",
    "{n} {u} are how many {v}?",
    "{n} {u} = ? {v}",
    "In {v}, what is {n} {u}?",
    "In {v}, how much is {n} {u}?",
    "how many {v} in {n} {u}",
    "how many {v} are {n} {u}",
    "How many {v} does {n} {u} have?",
    "How many {v} does {n} {u} make?",
    "How many {v} do {n} {u} make?",
    "How many {v} are equal to {n} {u}?",
    "How many {v} would {n} {u} be?",
    "How many {v} do I get for {n} {u}?",
    "How much are {n} {u} in {v}?",
    "{n} {u} equals how many {v}?",
    "{n} {u} is how many {v}?",
    "{n} {u} = how many {v}?",
    "{n} {u} into {v}",
    "{n} {u} as {v}",
    "{n} {u}, in {v}",
    "What would {n} {u} be in {v}?",
    "What is {n} {u} expressed in {v}?",
    "I have {n} {u}. How many {v} is that?",
    "I need {n} {u} in {v}",
    "{n} {u}: how many {v}?",
    "{v} in {n} {u}?",
    "If I have {n} {u}, how many {v} is that?",
)


def named(n: int, unit: str) -> str:
    """Returns the unit's name, singular or plural."""
    if n != 1 or len(unit) <= 3:
        return unit
    return _ONE.get(unit, unit.removesuffix("s"))


def units_up_to(rng: random.Random, top: int) -> Pair:
    """Returns units whose largest number is `top`, METRIC or OTHER. Those with multiples hard to tell are frequent."""
    pairs = [pair for pair in UNITS if pair[3] == top]
    return rng.choices(pairs, [3 if pair[2] in (3, 7) else 1 for pair in pairs])[0]


def conversion(rng: random.Random, pair: Pair, n: int, back: bool) -> Sample:
    """Returns a conversion of `n` of the larger unit, or with `back` to it."""
    large, small, factor, _ = pair
    u, v = rng.choice(large), rng.choice(small)
    before, after = (n, u), (n * factor, v)
    if back:
        before, after = after, before
    (n, u), (m, v) = before, after
    amount = rng.choice(("a", "an", "one", "1")) if n == 1 else str(n)
    one = named(n, u)
    if amount in ("a", "an"):
        amount = "an" if one.startswith(("h", "o", "i")) and one != "h" else "a"
    prompt = phrase(rng, CORES, QUESTIONS, n=amount, u=one, v=v)
    return single("units", prompt, f"{n} {one} = {m} {named(m, v)}.")


@task("units", "short")
def units(rng: random.Random) -> Sample:
    back = rng.random() < 0.45
    top = rng.choice((METRIC, OTHER, OTHER, OTHER) if back else (METRIC, OTHER))  # back, other factors are hard
    kind = rng.random()
    n = 1 if kind < 0.06 else top if kind < 0.16 else rng.randint(1, rng.choice((min(top, 99), top)))
    return conversion(rng, units_up_to(rng, top), n, back)
