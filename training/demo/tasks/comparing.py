"""Comparison of two numbers."""

from __future__ import annotations

import random

from runtime.demo.tasks import comparing as shipped
from runtime.demo.tasks.base import Sample
from training.demo.tasks.base import task
from training.demo.tasks.phrasing import phrase

_WHICH = (
    *shipped.WHICH, "Which is {w}: {a} or {b}?", "Which one is {w}, {a} or {b}?", "what is {w} {a} or {b}",
    "which is {w} {a} or {b}", "{a} or {b} which is {w}", "{a} and {b}: which one is {w}?",
    "{a} vs {b}, which is {w}?", "{a} versus {b}: which is {w}?", "Out of {a} and {b}, which is {w}?",
    "I have {a} and {b}. Which is {w}?", "Which number is {w}, {a} or is it {b}?",
    "Which of the two is {w}: {a} or {b}?", "Which of these is {w}: {a}, {b}?", "Tell me which is {w}, {a} or {b}.",
    "Say which is {w}: {a} or {b}.",
)  # fmt: skip
_IS = (
    *shipped.IS, "Is {a} a {w} number than {b}?", "is {a} really {w} than {b}",
    "I think {a} is {w} than {b}. Is that so?", "I say {a} is {w} than {b}. Right?",
    "{a} is {w} than {b}, true or false?", "True or false: {a} is {w} than {b}", "Does {a} count as {w} than {b}?",
    "Can you tell me if {a} is {w} than {b}?",
)  # fmt: skip
_PICKED = (
    *shipped.PICKED, "{a} and {b}: the {m}?", "{m} of {a} and {b}", "{m}: {a} or {b}?",
    "Which is the {m}: {a} or {b}?",
)  # fmt: skip


@task("compare", "short")
def compare(rng: random.Random) -> Sample:
    limits = (20, 99, 999, 999, 1010)
    return shipped.comparison(rng, phrase, limits=limits, which=_WHICH, statements=_IS, picked=_PICKED)
