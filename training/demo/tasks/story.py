"""Short stories of several plots, with consistent hero, companion, location and thing. Unrequested roles are free."""

from __future__ import annotations

import random
from collections.abc import Mapping

from runtime.bench.stories import (
    ANIMALS,
    LOCATIONS,
    NAMES,
    PLOTS,
    THINGS,
    TIMES,
    forms,
    match_plot,
    sentences,
    with_article,
)
from training.demo.tasks import word_lists
from training.demo.tasks.base import Sample, single, task
from training.demo.tasks.phrasing import phrase

# Words for roles that are not requested. All words of a role have equally many letters, so that no choice moves an
# offset.
_FREE_NAMES = ("Anna", "Emma", "Jack", "Kate", "Noah", "Olga", "Paul", "Rosa", "Iris", "Nina", "Omar", "Will")
_FREE_ANIMALS = ("bear", "duck", "goat", "wolf", "lion", "frog")
_FREE_LOCATIONS = ("forest", "castle", "garden", "harbor", "market", "bridge", "island", "valley", "meadow")

_STORY = ("story", "story", "story", "short story", "little story", "nice story", "tale", "fairy tale", "bedtime story")
_REQUESTS = (
    "tell me a {s}",
    "tell me a {s}",
    "tell me a {s}",
    "tell a {s}",
    "tell us a {s}",
    "write a {s}",
    "write a {s}",
    "write me a {s}",
    "make up a {s}",
    "invent a {s}",
    "give me a {s}",
    "read me a {s}",
    "think of a {s}",
    "create a {s}",
    "compose a {s}",
    "come up with a {s}",
    "share a {s}",
    "start a {s}",
)
_WANT = ("I want to hear a {s}", "I would like to hear a {s}", "I'd like a {s}", "Do you know a {s}?", "A {s}, please",
         "Can I have a {s}?", "Let me hear a {s}", "How about a {s}?", "I want a {s}", "Time for a {s}!", "A {s}",
         "Do you have a {s} for me?", "{s}", "{s}, please", "{s} please",
         "Got a {s}?", "What about a {s}?", "Surprise me with a {s}")  # fmt: skip
_PERSONS = ("my friend ", "a boy called ", "a girl named ", "a girl called ", "a child named ", "someone called ",
            "my sister ", "my son ", "a man named ", "a king called ", "a pilot named ", "little ")  # fmt: skip
_AT = (" near ", " in ", " at ", " by ", " on ", " and ", " close to ", " who live near ", " visiting ")
_AND = (" and ", " and ", " and ", ", ", " and also ", ", and ", " & ")
_WITH_TOPIC = ("My daughter wants a {s}", "Let's have a {s}", "Please, a {s}!", "Once upon a time... a {s}", "Do a {s}",
               "A {s} for the children", "My son would love a {s}")  # fmt: skip
_ABOUT = (
    " about {t}",
    " that is about {t}",
    " where {t} come up",
    " in which {t} appear",
    " featuring {t}",
    " about {t}",
    " about {t}",
    " about {t}",
    " with {t}",
    " with {t} in it",
    " on {t}",
    " of {t}",
)


def plot_of(text: str) -> str | None:
    """Returns the key of a story's plot; None if the text is no story."""
    found = match_plot(text)
    return None if found is None else found[0]


def write(rng: random.Random, **asked: str) -> str:
    named = {
        "he": rng.choice(_FREE_NAMES),
        "an": rng.choice(_FREE_ANIMALS),
        "pl": rng.choice(_FREE_LOCATIONS),
        "th": rng.choice(THINGS),
        "time": rng.choice(TIMES),
    } | asked
    for role in ("an", "pl", "th"):
        named |= forms(role, named[role], asked.get(f"{role}_bare") == "yes")
    return "\n".join(sentence.format(**named) for sentence in sentences(rng.choice(tuple(PLOTS))))


KINDS = """little brave old young big small tiny clever sad happy lonely kind wise lazy hungry friendly magic lost red
blue white dark quiet golden strange shy""".split()  # noqa: SIM905
_BARE = """friendship love music happiness courage luck time money freedom peace hope magic space water snow gold honey
chocolate kindness science football dreams flowers colors books""".split()  # noqa: SIM905


MAX_LETTERS = 10  # of the longest word of a request


def _random_word(rng: random.Random, known: list[str]) -> str:
    """Returns a known or unknown word, sometimes with an adjective."""
    found = rng.choice(known) if rng.random() < 0.65 else word_lists.noun(rng)[:MAX_LETTERS]
    if rng.random() < 0.2:
        return f"{rng.choice(KINDS) if rng.random() < 0.7 else word_lists.made_up(rng)[:MAX_LETTERS]} {found}"
    return found


@task("story", "long", "story")
def story(rng: random.Random) -> Sample:
    """A story about a hero, companion or location from the common lists."""
    roles = rng.choice(("he", "an", "pl", "he an", "he an", "he pl", "an pl", "he an pl", "he an pl"))
    known = {"he": NAMES, "an": ANIMALS, "pl": LOCATIONS}
    return _topical(rng, "story", {role: rng.choice(known[role]) for role in roles.split()})


@task("story_any", "long", "story")
def story_any(rng: random.Random) -> Sample:
    """A story about any words, including made-up ones, adjectives, cities and two persons."""
    roles = rng.choice(("he", "an", "pl", "an", "he an", "he an", "he pl", "an pl", "he an pl", "he an pl", "th"))
    asked: dict[str, str] = {}
    if "he" in roles:
        asked["he"] = word_lists.name(rng)[:MAX_LETTERS]
    if "an" in roles:
        asked["an"] = _random_word(rng, ANIMALS)
        if "he" in roles and rng.random() < 0.25:
            asked |= {"an": word_lists.name(rng)[:MAX_LETTERS], "an_bare": "yes"}
    if "pl" in roles:
        asked["pl"] = _random_word(rng, LOCATIONS)
        if rng.random() < 0.25:
            asked |= {"pl": word_lists.city(rng)[:MAX_LETTERS], "pl_bare": "yes"}
    if roles == "th":
        thing = rng.choice(_BARE) if rng.random() < 0.7 else word_lists.noun(rng)[:MAX_LETTERS]
        asked |= {"th": thing, "th_bare": "yes"}
    return _topical(rng, "story_any", asked)


def _topical(rng: random.Random, name: str, asked: Mapping[str, str]) -> Sample:
    """Returns a request with the given roles."""
    parts = [asked["th"]] if "th" in asked else []
    if "he" in asked:
        before = "" if rng.random() < 0.8 else rng.choice(_PERSONS)
        parts.append(before + asked["he"])
    if "an" in asked:
        parts.append(asked["an"] if "an_bare" in asked else with_article(asked["an"]))
    if "pl" in asked:
        location = rng.choice((f"the {asked['pl']}", with_article(asked["pl"])))
        if "pl_bare" in asked:
            location = asked["pl"]
        if parts and ("pl_bare" in asked or rng.random() < 0.5):
            parts[-1] += rng.choice(_AT) + location
        else:
            # without a companion in the request, "a" before an unknown location would name a companion
            clear = "an" in asked or asked["pl"] in LOCATIONS
            parts.append(location if "pl_bare" in asked or (parts and clear) else f"the {asked['pl']}")
    topic = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + rng.choice(_AND) + parts[-1]
    return single(name, ask_for(rng, topic), write(rng, **asked), **asked)


def ask_for(rng: random.Random, topic: str) -> str:
    """Returns a request for a story about the topic."""
    about = rng.choice(_ABOUT)
    cores = [c.replace("{s}", "{s}" + about) for c in _REQUESTS]
    complete = [c.replace("{s}", "{s}" + about) for c in (*_WANT, *_WITH_TOPIC)]
    prompt = phrase(rng, cores, complete, s=rng.choice(_STORY), t=topic)
    return prompt[:1].upper() + prompt[1:] if rng.random() < 0.3 else prompt


_OPEN = (
    " about anything",
    " about whatever you like",
    " of your choice",
    " about something",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
)


@task("story_free", "long", "story")
def story_free(rng: random.Random) -> Sample:
    """A story without a topic: the model chooses and must stay consistent."""
    end = rng.choice(_OPEN)
    word = rng.choice(
        (*_STORY, "very short story", "good story", "funny story", "new story", "cute story", "children's story")
    )
    cores = [c.replace("{s}", "{s}" + end) for c in _REQUESTS]
    complete = [c.replace("{s}", "{s}" + end) for c in _WANT]
    return single("story_free", phrase(rng, cores, complete, s=word), write(rng))
