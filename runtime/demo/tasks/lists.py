"""Counting and sorting."""

from __future__ import annotations

import random
from collections.abc import Sequence

from runtime.demo.tasks import word_lists
from runtime.demo.tasks.base import Sample, single, task
from runtime.demo.tasks.phrasing import Phrase, listed, phrase

COUNT = (
    "count from {a} to {b}",
    "count from {a} to {b}",
    "count from {a} to {b}",
    "count {a} to {b}",
    "count the numbers from {a} to {b}",
    "count from {a} up to {b}",
    "count from {a} until {b}",
    "list the numbers from {a} to {b}",
    "list all numbers from {a} to {b}",
    "write the numbers from {a} to {b}",
    "write the numbers {a} to {b}",
    "give me the numbers from {a} to {b}",
    "say the numbers from {a} to {b}",
    "start at {a} and count to {b}",
    "start with {a} and stop at {b}, counting",
    "count up from {a} to {b}",
    "count for me from {a} to {b}",
    "count: {a} to {b}",
    "name the numbers from {a} to {b}",
    "print the numbers from {a} to {b}",
    "count, starting from {a} and ending at {b}",
    "show the numbers between {a} and {b}, both included",
)
NUMBERS = (
    "Numbers from {a} to {b}",
    "Numbers {a} to {b}",
    "What are the numbers from {a} to {b}?",
    "Which numbers come from {a} to {b}?",
    "From {a} to {b}, count",
    "The numbers from {a} to {b}",
    "{a} to {b}, count",
    "Counting from {a} to {b}",
)
DOWN = (
    "count down from {a} to {b}",
    "count backwards from {a} to {b}",
    "count back from {a} to {b}",
    "count down {a} to {b}",
    "start at {a} and count down to {b}",
)
TO = ("count to {b}", "count up to {b}", "count till {b}", "count until {b}", "count all the way to {b}")
FROM = ("count down from {a}", "count backwards from {a}")


def _counting(rng: random.Random, name: str, low: int, high: int) -> Sample:
    length = rng.randint(low, high)
    kind = rng.random()
    if kind < 0.15:
        numbers = list(range(1, length + 1))
        prompt = phrase(rng, TO, (), b=length)
    elif kind < 0.2:
        numbers = list(range(length, 0, -1))
        prompt = phrase(rng, FROM, (), a=length)
    else:
        first = rng.randint(0, 100 - length)
        numbers = list(range(first, first + length))
        down = kind < 0.4
        if down:
            numbers.reverse()
        cores = DOWN if down and rng.random() < 0.6 else COUNT
        prompt = phrase(rng, cores, () if cores is DOWN else NUMBERS, a=numbers[0], b=numbers[-1])
    return single(name, prompt, ", ".join(map(str, numbers)) + ".")


@task("count", "short")
def count(rng: random.Random) -> Sample:
    return _counting(rng, "count", 3, 20)


@task("count_far", "long")
def count_far(rng: random.Random) -> Sample:
    """Counts more than twenty numbers, over several blocks."""
    return _counting(rng, "count_far", 21, 100)


SORT = (
    "sort {l}",
    "sort {l}",
    "sort: {l}",
    "sort the list {l}",
    "sort the numbers {l}",
    "sort these numbers: {l}",
    "sort this list: {l}",
    "order {l}",
    "order these numbers: {l}",
    "put {l} in order",
    "put these in order: {l}",
    "put the numbers {l} in the right order",
    "arrange {l}",
    "arrange these numbers: {l}",
    "bring {l} into order",
)
SORTED = ("{l} sorted", "{l}, sorted", "{l} in order", "The right order of {l}?", "What is the order of {l}?",
           "How do you sort {l}?", "These numbers sorted: {l}", "Sorted: {l}")  # fmt: skip
UP = (
    " from small to large",
    " from smallest to largest",
    " in ascending order",
    ", smallest first",
    " from low to high",
)
LARGE_FIRST = (
    " from large to small",
    " from largest to smallest",
    " in descending order",
    ", largest first",
    ", biggest first",
    " from high to low",
)
ORDERED = ("sort{o}: {l}", "sort {l}{o}", "sort the numbers {l}{o}", "put {l} in order{o}", "arrange {l}{o}",
            "order {l}{o}", "sort these numbers{o}: {l}", "sort{o} {l}", "list {l}{o}", "rank {l}{o}", "sort{o}: {l}",
            "put these numbers{i}: {l}", "put {l}{i}", "arrange{i}: {l}", "sort{i}: {l}", "bring {l}{i}")  # fmt: skip
INTO_UP = (" in ascending order", " in rising order", " in order from smallest to largest", " in increasing order")
INTO_DOWN = (" in descending order", " in falling order", " in order from largest to smallest", " in decreasing order")
ALPHABETICAL = (
    "sort these words: {l}",
    "sort the words {l}",
    "sort {l} alphabetically",
    "put {l} in alphabetical order",
    "sort {l}",
)


@task("sort", "short")
def sort(rng: random.Random) -> Sample:
    if rng.random() < 0.12:
        return alphabetical(rng, phrase, ALPHABETICAL)
    top = rng.choice((10, 100, 100, 1000))
    numbers = rng.sample(range(top), rng.randint(2, 6 if top < 1000 else 5))
    text = listed(rng, [str(n) for n in numbers])
    kind = rng.random()
    down = kind < 0.25
    if kind < 0.5:
        cores = [c.replace("{o}", rng.choice(LARGE_FIRST if down else UP)) for c in ORDERED]
        cores = [c.replace("{i}", rng.choice(INTO_DOWN if down else INTO_UP)) for c in cores]
        prompt = phrase(rng, cores, (), l=text)
    else:
        prompt = phrase(rng, SORT, SORTED, l=text)
    return single("sort", prompt, ", ".join(map(str, sorted(numbers, reverse=down))) + ".")


def alphabetical(rng: random.Random, phrase: Phrase, templates: Sequence[str]) -> Sample:
    """Returns a request to sort words with different first letters."""
    found: dict[str, str] = {}
    for _ in range(rng.randint(3, 5)):
        word = word_lists.noun(rng)
        found.setdefault(word[0], word)
    several = list(found.values()) if len(found) > 1 else ["pear", "apple"]
    return single("sort", phrase(rng, templates, (), l=listed(rng, several)), ", ".join(sorted(several)) + ".")
