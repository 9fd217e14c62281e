"""Counting and sorting."""

from __future__ import annotations

import random

from runtime.demo.tasks import lists as shipped
from runtime.demo.tasks.base import Sample, single
from runtime.demo.tasks.phrasing import listed
from training.demo.tasks.base import task
from training.demo.tasks.phrasing import phrase

LARGEST = 120  # number of the counting tasks
_COUNT = (
    *shipped.COUNT, "count up {a} to {b}", "list {a} to {b}", "list every number from {a} to {b}",
    "go from {a} to {b}", "say all numbers from {a} to {b}", "write down the numbers from {a} to {b}",
    "write out the numbers from {a} to {b}", "give me all numbers from {a} to {b}", "begin at {a} and count to {b}",
    "begin with {a} and go to {b}", "show me the numbers from {a} to {b}", "show me how to count from {a} to {b}",
    "keep counting from {a} until you reach {b}", "count {a} through {b}", "count from {a} through {b}",
    "count upwards from {a} to {b}",
)  # fmt: skip
_NUMBERS = (
    *shipped.NUMBERS, "{a} to {b}", "{a} through {b}", "{a} up to {b}", "All the numbers from {a} to {b}",
    "every number from {a} to {b}", "What comes from {a} to {b}?",
)  # fmt: skip
_DOWN = (
    *shipped.DOWN, "count from {a} down to {b}", "count from {a} back to {b}", "count from {a} backwards to {b}",
    "count in reverse from {a} to {b}", "list the numbers from {a} down to {b}",
    "write the numbers from {a} down to {b}", "give me the numbers from {a} down to {b}", "go from {a} down to {b}",
    "start from {a} and go down to {b}", "count downwards from {a} to {b}", "do a countdown from {a} to {b}",
)  # fmt: skip
_DOWNWARDS = (
    "Countdown from {a} to {b}",
    "countdown {a} to {b}",
    "From {a} down to {b}",
    "{a} down to {b}",
    "Numbers from {a} down to {b}",
    "What are the numbers from {a} down to {b}?",
    "Counting down from {a} to {b}",
)
_COUNT_TO = ("Counting to {b}", "Numbers up to {b}", "All numbers from one to {b}", "1 to {b}", "From one to {b}")
_FROM = (
    *shipped.FROM, "do a countdown from {a}", "count down from {a} to one",
)  # fmt: skip
_FROM_TO_ZERO = ("count down from {a} to zero", "count backwards from {a} to zero", "count from {a} down to zero")


def _counting(rng: random.Random, name: str, low: int, high: int) -> Sample:
    length = rng.randint(low, high)
    kind = rng.random()
    if kind < 0.15:
        numbers = list(range(1, length + 1))
        prompt = phrase(rng, shipped.TO, _COUNT_TO, b=length)
    elif kind < 0.2:
        numbers = list(range(length, rng.choice((0, -1)), -1))
        prompt = phrase(rng, _FROM if numbers[-1] == 1 else _FROM_TO_ZERO, (), a=length)
    else:
        first = rng.randint(0, LARGEST + 1 - length)
        numbers = list(range(first, first + length))
        down = kind < 0.5
        if down:
            numbers.reverse()
        cores = _DOWN if down and rng.random() < 0.6 else _COUNT
        prompt = phrase(rng, cores, _DOWNWARDS if cores is _DOWN else _NUMBERS, a=numbers[0], b=numbers[-1])
    return single(name, prompt, ", ".join(map(str, numbers)) + ".")


@task("count", "short")
def count(rng: random.Random) -> Sample:
    return _counting(rng, "count", 3, 20)


@task("count_far", "long")
def count_far(rng: random.Random) -> Sample:
    """Counts more than twenty numbers, over several blocks."""
    return _counting(rng, "count_far", 21, LARGEST)


_SORT = (
    *shipped.SORT, "sort these: {l}", "sort the following: {l}", "sort the following numbers: {l}",
    "put these numbers in order: {l}", "put the following in order: {l}", "put in order: {l}", "order: {l}",
    "order the numbers {l}", "get {l} in order", "get these in order: {l}", "line up {l}",
    "arrange the following: {l}", "sort my list: {l}", "sort this: {l}", "sort my numbers {l}", "sort them: {l}",
)  # fmt: skip
_SORTED = (
    *shipped.SORTED, "I have {l}. Sort them.", "I have the numbers {l}. Sort them, please.", "{l}: sort them",
    "{l} - sort these", "Here are some numbers: {l}. Sort them.", "{l}, sort them", "{l}, in order please",
    "My numbers are {l}, sort them", "Which order do {l} go in?", "What order do {l} go in?",
    "{l} in the right order", "{l} - in order", "In which order come {l}?", "{l}. Sort!",
    "My list is {l}. Put it in order.", "Numbers: {l}. Sort them.", "What do I get if I sort {l}?",
    "The list {l}, sorted",
)  # fmt: skip
_UP = (
    *shipped.UP, ", from smallest to largest", " from the smallest to the largest", " from smallest to biggest",
    " from small to big", " from lowest to highest", " smallest first", " with the smallest first",
    " starting with the smallest", " by size", ", small to large", " ascending", " upwards",
)  # fmt: skip
_LARGE_FIRST = (
    *shipped.LARGE_FIRST, ", from largest to smallest", " from the largest to the smallest",
    " from biggest to smallest", " from big to small", " from highest to lowest", " largest first",
    " with the largest first", " starting with the largest", ", large to small", " descending", " downwards",
    " in reverse order", " backwards",
)  # fmt: skip
_ORDERED = (
    *shipped.ORDERED, "{l} sorted{o}", "sort the following{o}: {l}", "get {l}{i}", "order these{o}: {l}",
    "arrange these numbers{o}: {l}",
)  # fmt: skip
_ALPHABETICAL = (
    *shipped.ALPHABETICAL, "order these words alphabetically: {l}", "put these words in alphabetical order: {l}",
    "arrange {l} alphabetically", "alphabetize {l}", "sort {l} by the alphabet", "sort {l} from a to z",
    "sort these: {l}",
)  # fmt: skip


@task("sort", "short")
def sort(rng: random.Random) -> Sample:
    if rng.random() < 0.12:
        return shipped.alphabetical(rng, phrase, _ALPHABETICAL)
    top = rng.choice((10, 100, 100, 1000, 1000, 1000))
    numbers = rng.sample(range(top), rng.choice((2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7)))
    if top == 1000 and rng.random() < 0.4:  # of different lengths
        shorter = {n % rng.choice((10, 100, 1000)) for n in numbers}
        numbers = rng.sample(sorted(shorter), len(shorter)) if len(shorter) > 1 else numbers
    text = listed(rng, [str(n) for n in numbers])
    kind = rng.random()
    down = kind < 0.25
    if kind < 0.5:
        cores = [c.replace("{o}", rng.choice(_LARGE_FIRST if down else _UP)) for c in _ORDERED]
        cores = [c.replace("{i}", rng.choice(shipped.INTO_DOWN if down else shipped.INTO_UP)) for c in cores]
        prompt = phrase(rng, cores, (), l=text)
    else:
        prompt = phrase(rng, _SORT, _SORTED, l=text)
    return single("sort", prompt, ", ".join(map(str, sorted(numbers, reverse=down))) + ".")
