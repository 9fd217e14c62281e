"""Unit conversions into the smaller unit."""

from __future__ import annotations

import random

from runtime.demo.tasks.base import Sample, single, task, typed

_UNITS = (  # from, to, factor, largest number
    ("km", "m", 1000, 99),
    ("m", "cm", 100, 99),
    ("cm", "mm", 10, 99),
    ("kg", "g", 1000, 99),
    ("tons", "kg", 1000, 99),
    ("liters", "ml", 1000, 99),
    ("dollars", "cents", 100, 99),
    ("hours", "minutes", 60, 20),
    ("minutes", "seconds", 60, 20),
    ("days", "hours", 24, 12),
    ("weeks", "days", 7, 20),
    ("years", "months", 12, 20),
)
_ASK = (
    "Convert {n} {u} to {v}.",
    "Convert {n} {u} into {v}.",
    "Please convert {n} {u} to {v}.",
    "How many {v} are {n} {u}?",
    "How many {v} are in {n} {u}?",
    "What is {n} {u} in {v}?",
    "{n} {u} in {v}",
    "{n} {u} to {v}",
    "Give me {n} {u} in {v}.",
)


@task("units", "short")
def units(rng: random.Random) -> Sample:
    u, v, factor, top = rng.choice(_UNITS)
    n = rng.randint(2, top)
    return single("units", typed(rng, rng.choice(_ASK).format(n=n, u=u, v=v)), f"{n} {u} = {n * factor} {v}.")
