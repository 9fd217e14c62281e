"""Spelling words and turning them round. A model that reads word pieces has to know how each is spelt."""

from __future__ import annotations

import random

from runtime.demo.tasks.base import Sample, ask, single, task
from runtime.demo.tasks.words import noun


@task("spell", "short")
def spell(rng: random.Random) -> Sample:
    word = noun(rng)
    core = rng.choice((f"spell {word}", f"spell the word {word}", f"spell {word} letter by letter"))
    return single("spell", ask(rng, core), "-".join(word) + ".")


@task("reverse", "short")
def reverse(rng: random.Random) -> Sample:
    word = noun(rng)
    core = rng.choice((f"reverse {word}", f"reverse the word {word}", f"write {word} backwards"))
    return single("reverse", ask(rng, core), "-".join(reversed(word)) + ".")
