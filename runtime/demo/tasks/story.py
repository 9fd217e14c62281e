"""Short stories from a grammar, with consistent hero, companion, location and thing. Unrequested roles are free."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence

from runtime.demo.tasks import word_lists
from runtime.demo.tasks.base import Sample, single, task
from runtime.demo.tasks.phrasing import Phrase, phrase
from runtime.demo.tasks.word_lists import ANIMALS, LOCATIONS, NAMES, THINGS, a

# Forms of each sentence. `he` is the hero, `an` the companion, `pl` the location, `th` the thing found.
_FORMS = (
    ("{he} lived near the {pl}.", "{he} lived alone near the {pl}."),
    ("One {time} {he} met {a_an}.",),
    ("The {an} was looking for {a_th}.",),
    ("{he} found {the_th} under a tree.", "{he} found {the_th} near the {pl}."),
    ("The {an} took {the_th} and thanked {he}.",),
    ("From then on {he} and the {an} were friends.",),
)
TIMES = ("morning", "evening", "day", "night")
FREE_NAMES, FREE_ANIMALS, FREE_LOCATIONS = NAMES[:16], ANIMALS[:10], LOCATIONS[:10]
OWN_THINGS = THINGS[:10]

STORY = ("story", "story", "story", "short story", "little story", "nice story", "tale", "fairy tale", "bedtime story")
REQUESTS = (
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
)
WANT = ("I want to hear a {s}", "I would like to hear a {s}", "I'd like a {s}", "Do you know a {s}?", "A {s}, please",
         "Can I have a {s}?", "Let me hear a {s}", "How about a {s}?", "I want a {s}", "Time for a {s}!", "A {s}",
         "Do you have a {s} for me?", "{s}", "{s}, please", "{s} please",
         "Got a {s}?", "What about a {s}?", "Surprise me with a {s}")  # fmt: skip
ABOUT = (" about {t}", " about {t}", " about {t}", " about {t}", " with {t}", " with {t} in it", " on {t}", " of {t}")


def _check(sample: Sample, text: str) -> bool:
    """Returns whether every sentence is a form of the grammar, with the requested roles, which stay the same."""
    sentences = [s for s in text.strip().split("\n") if s]
    if len(sentences) != len(_FORMS):
        return False
    named = _cast(sentences)
    if named is None or ("th" not in sample.facts and named["th"] not in OWN_THINGS):
        return False
    if any(named[key] != value for key, value in sample.facts.items()):
        return False
    free = {"he": NAMES, "an": ANIMALS, "pl": LOCATIONS}
    if any(named[key] not in known for key, known in free.items() if key not in sample.facts):
        return False
    return all(
        any(s == form.format(time=t, **named) for form in forms for t in TIMES)
        for s, forms in zip(sentences, _FORMS, strict=True)
    )


def _cast(sentences: list[str]) -> dict[str, str] | None:
    """Reads the roles of a story from three of its sentences; None if these are not forms of the grammar."""
    opening = re.fullmatch(r"(.+?) lived (?:alone )?near the (.+)\.", sentences[0])
    search = re.fullmatch(r"The (.+?) was looking for (an? )?(.+)\.", sentences[2])
    if opening is None or search is None:
        return None
    return _with_articles(
        {"he": opening[1], "pl": opening[2], "an": search[1], "th": search[3]}, bare=search[2] is None
    )


def _with_articles(named: dict[str, str], bare: bool) -> dict[str, str]:
    """Adds articles to the roles; a `bare` thing, such as music, has none."""
    thing = named["th"]
    return named | {
        "a_an": a(named["an"]),
        "a_th": thing if bare else a(thing),
        "the_th": thing if bare else f"the {thing}",
    }


def _write(rng: random.Random, **asked: str) -> str:
    named = {
        "he": rng.choice(FREE_NAMES),
        "an": rng.choice(FREE_ANIMALS),
        "pl": rng.choice(FREE_LOCATIONS),
        "th": rng.choice(OWN_THINGS),
        "time": rng.choice(TIMES),
    } | asked
    named = _with_articles(named, bare="th" in asked)
    return "\n".join(rng.choice(forms).format(**named) for forms in _FORMS)


KINDS = """little brave old young big small tiny clever sad happy lonely kind wise lazy hungry friendly magic lost red
blue white dark quiet golden strange shy""".split()  # noqa: SIM905
BARE = """friendship love music happiness courage luck time money freedom peace hope magic space water snow gold honey
chocolate kindness science football dreams flowers colors books""".split()  # noqa: SIM905


def _some(rng: random.Random, known: list[str]) -> str:
    """Returns a known or unknown word, sometimes with an adjective."""
    found = rng.choice(known) if rng.random() < 0.65 else word_lists.noun(rng)
    if rng.random() < 0.2:
        return f"{rng.choice(KINDS) if rng.random() < 0.7 else word_lists.made_up(rng)} {found}"
    return found


@task("story", "long", _check)
def story(rng: random.Random) -> Sample:
    """A story about a hero, companion or location from the common lists."""
    roles = rng.choice(("he", "an", "pl", "he an", "he an", "he pl", "an pl", "he an pl", "he an pl"))
    known = {"he": NAMES, "an": ANIMALS, "pl": LOCATIONS}
    return _topical(rng, "story", {role: rng.choice(known[role]) for role in roles.split()})


@task("story_any", "long", _check)
def story_any(rng: random.Random) -> Sample:
    """A story about any words, including made-up ones and adjectives."""
    roles = rng.choice(("he", "an", "pl", "an", "he an", "he an", "he pl", "an pl", "he an pl", "he an pl", "th"))
    asked: dict[str, str] = {}
    if "he" in roles:
        asked["he"] = word_lists.name(rng)
    if "an" in roles:
        asked["an"] = _some(rng, ANIMALS)
    if "pl" in roles:
        asked["pl"] = _some(rng, LOCATIONS)
    if roles == "th":
        asked["th"] = rng.choice(BARE) if rng.random() < 0.7 else word_lists.noun(rng)
    return _topical(rng, "story_any", asked)


def _topical(rng: random.Random, name: str, asked: Mapping[str, str]) -> Sample:
    """Returns a request with the given roles."""
    parts = [asked["th"]] if "th" in asked else []
    if "he" in asked:
        before = "" if rng.random() < 0.85 else rng.choice(("my friend ", "a boy called ", "a girl named "))
        parts.append(before + asked["he"])
    if "an" in asked:
        parts.append(a(asked["an"]))
    location = asked.get("pl")
    near = location is not None and bool(parts) and rng.random() < 0.4
    if (
        location is not None and not near
    ):  # "a" before a word that is no known place's names a companion, where there is none
        clear = "an" in asked or location in LOCATIONS
        parts.append(a(location) if parts and clear and rng.random() < 0.6 else f"the {location}")
    topic = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
    if near and location is not None:
        topic += rng.choice((" near ", " in ", " at ", " by ")) + rng.choice((f"the {location}", a(location)))
    about = rng.choice(ABOUT).format(t=topic)
    cores = [c.replace("{s}", "{s}" + about) for c in REQUESTS]
    complete = [c.replace("{s}", "{s}" + about) for c in WANT]
    prompt = phrase(rng, cores, complete, s=rng.choice(STORY))
    prompt = prompt[:1].upper() + prompt[1:] if rng.random() < 0.3 else prompt
    return single(name, prompt, _write(rng, **asked), **asked)


OPEN = (
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


def free_story(
    rng: random.Random, phrase: Phrase, requests: Sequence[str], write: Callable[[random.Random], str]
) -> Sample:
    """Returns a request for a story without a topic: the model chooses and must stay consistent."""
    end = rng.choice(OPEN)
    word = rng.choice(
        (*STORY, "very short story", "good story", "funny story", "new story", "cute story", "children's story")
    )
    cores = [c.replace("{s}", "{s}" + end) for c in requests]
    complete = [c.replace("{s}", "{s}" + end) for c in WANT]
    return single("story_free", phrase(rng, cores, complete, s=word), write(rng))


@task("story_free", "long", _check)
def story_free(rng: random.Random) -> Sample:
    return free_story(rng, phrase, REQUESTS, _write)
