"""A short story from a grammar. Hero, friend and thing are carried through; other choices are free but must fit."""

from __future__ import annotations

import random
import re

from runtime.demo.tasks.base import Sample, ask, single, task
from runtime.demo.tasks.words import ANIMALS, NAMES, PLACES, THINGS

# Each sentence has several forms; `he` stands for hero, `an` for the animal, `pl` the place, `th` the thing found.
_FORMS = (
    ("{he} lived near the {pl}.", "{he} lived alone near a {pl}.", "Near the {pl} lived {he}."),
    ("One {time} {he} met a {an}.", "One {time} a {an} came to {he}.", "One {time} {he} saw a {an} by the {pl}."),
    ("The {an} had lost a {th}.", "The {an} was looking for a {th}.", "The {an} was sad about a lost {th}."),
    (
        "{he} found the {th} under a tree.",
        "{he} found the {th} in the {pl}.",
        "{he} looked all day and found the {th}.",
    ),
    ("The {an} took the {th} and thanked {he}.", "The {an} was happy and thanked {he} for the {th}."),
    ("From then on {he} and the {an} were friends.", "{he} and the {an} stayed friends for ever."),
)
_TIMES = ("morning", "evening", "day", "night")


def _check(sample: Sample, text: str) -> bool:
    """Every sentence is a form of the grammar, in order, with the asked hero, animal and place and one same thing."""
    named = dict(sample.facts)
    thing = re.search(r"the (\w+) (?:under a tree|in the)|found the (\w+)", text)
    if thing is None:
        return False
    named["th"] = thing.group(1) or thing.group(2)
    if named["th"] not in THINGS:
        return False
    sentences = [s for s in text.strip().split("\n") if s]
    if len(sentences) != len(_FORMS):
        return False
    return all(
        any(s == form.format(time=t, **named) for form in forms for t in _TIMES)
        for s, forms in zip(sentences, _FORMS, strict=True)
    )


@task("story", "long", _check)
def story(rng: random.Random) -> Sample:
    named = {"he": rng.choice(NAMES), "an": rng.choice(ANIMALS), "pl": rng.choice(PLACES)}
    thing, time = rng.choice(THINGS), rng.choice(_TIMES)
    core = rng.choice(("tell a story about {he}, a {an} and a {pl}", "write a story of {he} and a {an} near a {pl}"))
    text = "\n".join(rng.choice(forms).format(time=time, th=thing, **named) for forms in _FORMS)
    return single("story", ask(rng, core.format(**named)), text, **named)
