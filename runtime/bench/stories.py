"""Stories of the demo model: their plots, and a checker.

A story has a hero, a companion, a location and a thing, which stay the same. A prompt requests some of these roles, and
the model chooses the others.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

# ruff: noqa: SIM905 (a list of words reads best as words)

# The sentences of each plot. `he` is the hero, `an` the companion, `pl` the location, `th` the thing.
# A role has an article where it is a noun: "a fox", "the fox". Proper names and bare things, such as music, have none.
# No plot has "it", since the companion may be a person.
#
# The first two sentences name all roles, and plots differ there in one token, the plot's key. So the offset of a role
# does not depend on the plot, and that token alone chooses the plot. With openings of several forms, decoding copied
# names with wrong letters, since their offset was uncertain. Sampling also gave few of the plots: it unmasks the most
# probable of the sampled tokens first, and that is one which several plots have at the same offset.
_OPENING = ("{he} %s near {the_pl}.", "One {time} {a_an} came with {a_th}.")
PLOTS: Mapping[str, Sequence[str]] = {
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
    "works": (
        "{The_an} was asking for help.",
        "So {he} looked at {the_th} for a long time.",
        "Then {the_th} was like new.",
        "{The_an} thanked {he} and came back every year.",
    ),
    "trained": (
        "{The_an} was big, and {he} was small.",
        "So {he} trained all day with {the_th}.",
        "{The_an} saw that and was kind.",
        "The next year {he} was the best.",
    ),
    "called": (
        "There was nothing to hear.",
        "Then {the_an} called with {the_th}.",
        "So {he} was not alone.",
        "From then on the two called every {time}.",
    ),
    "runs": (
        "{The_an} did not stop and lost {the_th}.",
        "{he} took {the_th} and came after {the_an}.",
        "{The_an} was very happy.",
        "So the two made a long way together.",
    ),
}
TIMES = ("morning", "evening", "day", "night")
# Words for roles that no prompt requests.
NAMES = """
Anna Ben Clara David Emma Felix Grace Henry Iris Jack Kate Leo Maria Noah Olga Paul Quinn Rosa Sam Tina Uma
Victor Wendy Xavier Yara Zoe Adam Bella Carl Dora Eric Fiona George Hanna Ivan Julia Kevin Laura Mark Nina
Oscar Peter Rita Simon Tom Vera Will Alice Amir Chen Diego Elif Farid Hana Ines Jamal Kofi Lena Mei Nadia Omar
Priya Raj Sven Tariq Yuki Zara Ahmed Lucas Sofia Liam Mia Ella Max Nora Hugo Ida Otto Ruth Sean Tess Ali Luca
""".split()
ANIMALS = """
dog cat horse rabbit fox owl mouse bear duck goat dragon robot wizard giant wolf lion turtle elephant hedgehog
penguin squirrel frog pirate witch knight ghost unicorn whale
""".split()
LOCATIONS = """
river forest village castle garden harbor market mountain lake bridge sea island desert valley lighthouse meadow cave
tower beach mill
""".split()
THINGS = ("lamp", "coin", "ring", "book", "drum", "kite", "rope")


def sentences(plot: str) -> tuple[str, ...]:
    return _OPENING[0] % plot, _OPENING[1], *PLOTS[plot]


def _pattern(sentences: Sequence[str]) -> re.Pattern[str]:
    """Returns a pattern of these sentences with a group per field, which repeats what it has matched before."""
    seen: set[str] = set()

    def group(found: re.Match[str]) -> str:
        field = found[1]
        if field in seen:
            return f"(?P={field})"
        seen.add(field)
        return f"(?P<{field}>{'|'.join(TIMES) if field == 'time' else '.+?'})"

    return re.compile(re.sub(r"\\{(\w+)\\}", group, "\n".join(map(re.escape, sentences))))


@functools.cache
def _patterns() -> Mapping[str, re.Pattern[str]]:
    return {plot: _pattern(sentences(plot)) for plot in PLOTS}


def match_plot(text: str) -> tuple[str, re.Match[str]] | None:
    """Returns the key of a story's plot and the match of its pattern; None if the text is no story."""
    matches = ((plot, pattern.fullmatch(text.strip())) for plot, pattern in _patterns().items())
    return next(((plot, match) for plot, match in matches if match), None)


def is_story(asked: Mapping[str, str], text: str) -> bool:
    """Returns whether the text is a story of one of the plots, with the requested roles, which stay the same.

    Args:
        asked: requested role -> its word, and `ROLE_bare` -> "yes" for a word without an article.
    """
    found = match_plot(text)
    return found is not None and _roles_match(found[1].groupdict(), asked)


def _roles_match(fields: Mapping[str, str], asked: Mapping[str, str]) -> bool:
    """Returns whether the fields of a story agree with each other and have the requested roles."""
    roles = {"he": fields["he"]}
    for role in ("an", "pl", "th"):
        first = next(fields[f] for f in (f"the_{role}", f"The_{role}", f"a_{role}", f"A_{role}") if f in fields)
        roles[role] = re.sub(r"^(?:[Tt]he|[Aa]n?) ", "", first)
        bare = role in asked and asked.get(f"{role}_bare") == "yes"
        expected = forms(role, roles[role], bare)
        if any(value != expected[f] for f, value in fields.items() if f in expected):
            return False
    if any(roles[role] != asked[role] for role in roles if role in asked):
        return False
    free = {"he": NAMES, "an": ANIMALS, "pl": LOCATIONS, "th": THINGS}
    return all(roles[role] in known for role, known in free.items() if role not in asked)


def forms(role: str, word: str, bare: bool) -> dict[str, str]:
    """Returns a role's forms with articles. A `bare` word, such as music, Rome or Tom, has no article."""
    the = word if bare else f"the {word}"
    one = word if bare else with_article(word)
    return {
        f"a_{role}": one,
        f"A_{role}": one[:1].upper() + one[1:],
        f"the_{role}": the,
        f"The_{role}": the[:1].upper() + the[1:],
    }


def with_article(word: str) -> str:
    """Returns the word with its article."""
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
