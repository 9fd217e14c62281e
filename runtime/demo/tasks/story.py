"""Short stories of several plots, with consistent hero, companion, location and thing. Unrequested roles are free."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Mapping, Sequence

from runtime.demo.tasks import word_lists
from runtime.demo.tasks.base import Sample, single, task
from runtime.demo.tasks.phrasing import phrase
from runtime.demo.tasks.word_lists import ANIMALS, LOCATIONS, NAMES, a

# The sentences of each plot. `he` is the hero, `an` the companion, `pl` the location, `th` the thing.
# A role has an article where it is a noun: "a fox", "the fox". Proper names and bare things, such as music, have none.
# No plot has "it", since the companion may be a person.
#
# The first two sentences name all roles, and plots differ there in one token, the plot's key. So the offset of a role
# does not depend on the plot, and that token alone chooses the plot. With openings of several forms, decoding copied
# names with wrong letters, since their offset was uncertain. Sampling also gave few of the plots: it unmasks the most
# probable of the sampled tokens first, and that is one which several plots have at the same offset.
_OPENING = ("{he} %s near {the_pl}.", "One {time} {a_an} came with {a_th}.")
_PLOTS: Mapping[str, Sequence[str]] = {
    "lived": (
        "{The_an} was looking for friends.",
        "{he} took {the_th} and thanked {the_an}.",
        "So the two stayed together.",
        "From then on {he} and {the_an} were friends.",
    ),
    "dreamed": (
        "{The_an} called, and {he} came near.",
        "Then there was nothing more.",
        "So {he} looked around for a long time.",
        "{he} found {the_th}, but not {the_an}.",
    ),
    "came": (
        "{he} could not find the way back.",
        "{The_an} knew the way.",
        "So the two came back together.",
        "{he} thanked {the_an} for {the_th}.",
    ),
    "stayed": (
        "There was magic in {the_th}.",
        "So {the_an} made {the_pl} very small.",
        "{he} saw that and had to smile.",
        "And so {the_pl} is small to this day.",
    ),
    "read": (
        "{The_an} was alone.",
        "{he} knew a good story.",
        "The story was about {the_th}.",
        "From then on {the_an} was not alone.",
    ),
    "looked": (
        "{he} was missing {the_th} for a long time.",
        "{The_an} had found {the_th} under a tree.",
        "So {the_an} put {the_th} down.",
        "{he} thanked {the_an} and had to smile.",
    ),
    "was": (
        "{The_an} was hungry.",
        "So {he} put bread on the table.",
        "{The_an} left {the_th} and thanked {he}.",
        "That was the best {time} of the year.",
    ),
}
# Words for roles that are not requested. All words of a role have equally many letters, so that no choice moves an
# offset.
_FREE_NAMES = ("Anna", "Emma", "Jack", "Kate", "Noah", "Olga", "Paul", "Rosa", "Iris", "Nina", "Omar", "Will")
_FREE_ANIMALS = ("bear", "duck", "goat", "wolf", "lion", "frog")
_FREE_LOCATIONS = ("forest", "castle", "garden", "harbor", "market", "bridge", "island", "valley", "meadow")
_FREE_THINGS = ("lamp", "coin", "ring", "book", "drum", "kite", "rope")
_TIMES = ("morning", "evening", "day", "night")

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


def _sentences(plot: str) -> tuple[str, ...]:
    return _OPENING[0] % plot, _OPENING[1], *_PLOTS[plot]


def _pattern(sentences: Sequence[str]) -> re.Pattern[str]:
    """Returns a pattern of these sentences with a group per field, which repeats what it has matched before."""
    seen: set[str] = set()

    def group(found: re.Match[str]) -> str:
        field = found[1]
        if field in seen:
            return f"(?P={field})"
        seen.add(field)
        return f"(?P<{field}>{'|'.join(_TIMES) if field == 'time' else '.+?'})"

    return re.compile(re.sub(r"\\{(\w+)\\}", group, "\n".join(map(re.escape, sentences))))


@functools.cache
def _patterns() -> Mapping[str, re.Pattern[str]]:
    return {plot: _pattern(_sentences(plot)) for plot in _PLOTS}


def plot_of(text: str) -> str | None:
    """Returns the key of a story's plot; None if the text is no story."""
    found = _match_plot(text)
    return None if found is None else found[0]


def _match_plot(text: str) -> tuple[str, re.Match[str]] | None:
    """Returns the key of a story's plot and the match of its pattern; None if the text is no story."""
    matches = ((plot, pattern.fullmatch(text.strip())) for plot, pattern in _patterns().items())
    return next(((plot, match) for plot, match in matches if match), None)


def _check(sample: Sample, text: str) -> bool:
    """Returns whether the text is one of the plots, with the requested roles, which stay the same."""
    found = _match_plot(text)
    return found is not None and _roles_match(found[1].groupdict(), sample.facts)


def _roles_match(fields: Mapping[str, str], asked: Mapping[str, str]) -> bool:
    """Returns whether the fields of a story agree with each other and have the requested roles."""
    roles = {"he": fields["he"]}
    for role in ("an", "pl", "th"):
        forms = [fields[f] for f in (f"the_{role}", f"The_{role}", f"a_{role}", f"A_{role}") if f in fields]
        roles[role] = re.sub(r"^(?:[Tt]he|[Aa]n?) ", "", forms[0])
        bare = role in asked and asked.get(f"{role}_bare") == "yes"
        expected = _forms(role, roles[role], bare)
        if any(value != expected[f] for f, value in fields.items() if f in expected):
            return False
    if any(roles[role] != asked[role] for role in roles if role in asked):
        return False
    free = {"he": NAMES, "an": ANIMALS, "pl": LOCATIONS, "th": _FREE_THINGS}
    return all(roles[role] in known for role, known in free.items() if role not in asked)


def _forms(role: str, word: str, bare: bool) -> dict[str, str]:
    """Returns a role's forms with articles. A `bare` word, such as music, Rome or Tom, has no article."""
    the = word if bare else f"the {word}"
    one = word if bare else a(word)
    forms = {"a": one, "A": one[:1].upper() + one[1:], "the": the, "The": the[:1].upper() + the[1:]}
    return {f"{article}_{role}": form for article, form in forms.items()}


def write(rng: random.Random, **asked: str) -> str:
    named = {
        "he": rng.choice(_FREE_NAMES),
        "an": rng.choice(_FREE_ANIMALS),
        "pl": rng.choice(_FREE_LOCATIONS),
        "th": rng.choice(_FREE_THINGS),
        "time": rng.choice(_TIMES),
    } | asked
    for role in ("an", "pl", "th"):
        named |= _forms(role, named[role], asked.get(f"{role}_bare") == "yes")
    return "\n".join(sentence.format(**named) for sentence in _sentences(rng.choice(tuple(_PLOTS))))


_KINDS = """little brave old young big small tiny clever sad happy lonely kind wise lazy hungry friendly magic lost red
blue white dark quiet golden strange shy""".split()  # noqa: SIM905
_BARE = """friendship love music happiness courage luck time money freedom peace hope magic space water snow gold honey
chocolate kindness science football dreams flowers colors books""".split()  # noqa: SIM905


_LETTERS = 10  # of the longest word of a request


def _random_word(rng: random.Random, known: list[str]) -> str:
    """Returns a known or unknown word, sometimes with an adjective."""
    found = rng.choice(known) if rng.random() < 0.65 else word_lists.noun(rng)[:_LETTERS]
    if rng.random() < 0.2:
        return f"{rng.choice(_KINDS) if rng.random() < 0.7 else word_lists.made_up(rng)[:_LETTERS]} {found}"
    return found


@task("story", "long", _check)
def story(rng: random.Random) -> Sample:
    """A story about a hero, companion or location from the common lists."""
    roles = rng.choice(("he", "an", "pl", "he an", "he an", "he pl", "an pl", "he an pl", "he an pl"))
    known = {"he": NAMES, "an": ANIMALS, "pl": LOCATIONS}
    return _topical(rng, "story", {role: rng.choice(known[role]) for role in roles.split()})


@task("story_any", "long", _check)
def story_any(rng: random.Random) -> Sample:
    """A story about any words, including made-up ones, adjectives, cities and two persons."""
    roles = rng.choice(("he", "an", "pl", "an", "he an", "he an", "he pl", "an pl", "he an pl", "he an pl", "th"))
    asked: dict[str, str] = {}
    if "he" in roles:
        asked["he"] = word_lists.name(rng)[:_LETTERS]
    if "an" in roles:
        asked["an"] = _random_word(rng, ANIMALS)
        if "he" in roles and rng.random() < 0.25:
            asked |= {"an": word_lists.name(rng)[:_LETTERS], "an_bare": "yes"}
    if "pl" in roles:
        asked["pl"] = _random_word(rng, LOCATIONS)
        if rng.random() < 0.25:
            asked |= {"pl": word_lists.city(rng)[:_LETTERS], "pl_bare": "yes"}
    if roles == "th":
        asked |= {"th": rng.choice(_BARE) if rng.random() < 0.7 else word_lists.noun(rng)[:_LETTERS], "th_bare": "yes"}
    return _topical(rng, "story_any", asked)


def _topical(rng: random.Random, name: str, asked: Mapping[str, str]) -> Sample:
    """Returns a request with the given roles."""
    parts = [asked["th"]] if "th" in asked else []
    if "he" in asked:
        before = "" if rng.random() < 0.8 else rng.choice(_PERSONS)
        parts.append(before + asked["he"])
    if "an" in asked:
        parts.append(asked["an"] if "an_bare" in asked else a(asked["an"]))
    if "pl" in asked:
        location = rng.choice((f"the {asked['pl']}", a(asked["pl"])))
        if "pl_bare" in asked:
            location = asked["pl"]
        if parts and ("pl_bare" in asked or rng.random() < 0.5):
            parts[-1] += rng.choice(_AT) + location
        else:
            # without a companion in the request, "a" before an unknown location would name a companion
            clear = "an" in asked or asked["pl"] in LOCATIONS
            parts.append(location if "pl_bare" in asked or (parts and clear) else f"the {asked['pl']}")
    topic = parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + rng.choice(_AND) + parts[-1]
    about = rng.choice(_ABOUT)
    cores = [c.replace("{s}", "{s}" + about) for c in _REQUESTS]
    complete = [c.replace("{s}", "{s}" + about) for c in (*_WANT, *_WITH_TOPIC)]
    prompt = phrase(rng, cores, complete, s=rng.choice(_STORY), t=topic)
    prompt = prompt[:1].upper() + prompt[1:] if rng.random() < 0.3 else prompt
    return single(name, prompt, write(rng, **asked), **asked)


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


@task("story_free", "long", _check)
def story_free(rng: random.Random) -> Sample:
    """A story without a topic: the model chooses and must stay consistent."""
    end = rng.choice(_OPEN)
    word = rng.choice(
        (*_STORY, "very short story", "good story", "funny story", "new story", "cute story", "children's story")
    )
    cores = [c.replace("{s}", "{s}" + end) for c in _REQUESTS]
    complete = [c.replace("{s}", "{s}" + end) for c in _WANT]
    return single("story_free", phrase(rng, cores, complete, s=word), write(rng))
