"""Counting and sorting."""

from __future__ import annotations

import random

from training.demo.tasks import word_lists
from training.demo.tasks.base import Sample, single, task
from training.demo.tasks.phrasing import listed, phrase

LARGEST = 120  # largest number of the counting tasks
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
    "count up {a} to {b}",
    "list {a} to {b}",
    "list every number from {a} to {b}",
    "go from {a} to {b}",
    "say all numbers from {a} to {b}",
    "write down the numbers from {a} to {b}",
    "write out the numbers from {a} to {b}",
    "give me all numbers from {a} to {b}",
    "begin at {a} and count to {b}",
    "begin with {a} and go to {b}",
    "show me the numbers from {a} to {b}",
    "show me how to count from {a} to {b}",
    "keep counting from {a} until you reach {b}",
    "count {a} through {b}",
    "count from {a} through {b}",
    "count upwards from {a} to {b}",
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
    "{a} to {b}",
    "{a} through {b}",
    "{a} up to {b}",
    "All the numbers from {a} to {b}",
    "every number from {a} to {b}",
    "What comes from {a} to {b}?",
)
DOWN = (
    "count down from {a} to {b}",
    "count backwards from {a} to {b}",
    "count back from {a} to {b}",
    "count down {a} to {b}",
    "start at {a} and count down to {b}",
    "count from {a} down to {b}",
    "count from {a} back to {b}",
    "count from {a} backwards to {b}",
    "count in reverse from {a} to {b}",
    "list the numbers from {a} down to {b}",
    "write the numbers from {a} down to {b}",
    "give me the numbers from {a} down to {b}",
    "go from {a} down to {b}",
    "start from {a} and go down to {b}",
    "count downwards from {a} to {b}",
    "do a countdown from {a} to {b}",
)
DOWNWARDS = (
    "Countdown from {a} to {b}",
    "countdown {a} to {b}",
    "From {a} down to {b}",
    "{a} down to {b}",
    "Numbers from {a} down to {b}",
    "What are the numbers from {a} down to {b}?",
    "Counting down from {a} to {b}",
)
TO = ("count to {b}", "count up to {b}", "count till {b}", "count until {b}", "count all the way to {b}")
COUNT_TO = ("Counting to {b}", "Numbers up to {b}", "All numbers from one to {b}", "1 to {b}", "From one to {b}")
FROM = ("count down from {a}", "count backwards from {a}", "do a countdown from {a}", "count down from {a} to one")
_FROM_TO_ZERO = ("count down from {a} to zero", "count backwards from {a} to zero", "count from {a} down to zero")


def _counting(rng: random.Random, name: str, low: int, high: int) -> Sample:
    length = rng.randint(low, high)
    kind = rng.random()
    if kind < 0.15:
        numbers = list(range(1, length + 1))
        prompt = phrase(rng, TO, COUNT_TO, b=length)
    elif kind < 0.2:
        numbers = list(range(length, rng.choice((0, -1)), -1))
        prompt = phrase(rng, FROM if numbers[-1] == 1 else _FROM_TO_ZERO, (), a=length)
    else:
        length += length == LARGEST  # zero makes one number more
        first = rng.randint(0, LARGEST + 1 - length)
        numbers = list(range(first, first + length))
        down = kind < 0.5
        if down:
            numbers.reverse()
        cores = DOWN if down and rng.random() < 0.6 else COUNT
        prompt = phrase(rng, cores, DOWNWARDS if cores is DOWN else NUMBERS, a=numbers[0], b=numbers[-1])
    return single(name, prompt, ", ".join(map(str, numbers)) + ".")


@task("count", "short")
def count(rng: random.Random) -> Sample:
    return _counting(rng, "count", 1, 20)


@task("count_far", "long")
def count_far(rng: random.Random) -> Sample:
    """Counts more than twenty numbers, over several blocks."""
    return _counting(rng, "count_far", 21, LARGEST)


_SORT = (
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
    "sort these: {l}",
    "sort the following: {l}",
    "sort the following numbers: {l}",
    "put these numbers in order: {l}",
    "put the following in order: {l}",
    "put in order: {l}",
    "order: {l}",
    "order the numbers {l}",
    "get {l} in order",
    "get these in order: {l}",
    "line up {l}",
    "arrange the following: {l}",
    "sort my list: {l}",
    "sort this: {l}",
    "sort my numbers {l}",
    "sort them: {l}",
)
_SORTED = ("{l} sorted", "{l}, sorted", "{l} in order", "The right order of {l}?", "What is the order of {l}?",
           "How do you sort {l}?", "These numbers sorted: {l}", "Sorted: {l}", "I have {l}. Sort them.",
           "I have the numbers {l}. Sort them, please.", "{l}: sort them", "{l} - sort these",
           "Here are some numbers: {l}. Sort them.", "{l}, sort them", "{l}, in order please",
           "My numbers are {l}, sort them", "Which order do {l} go in?", "What order do {l} go in?",
           "{l} in the right order", "{l} - in order", "In which order come {l}?", "{l}. Sort!",
           "My list is {l}. Put it in order.", "Numbers: {l}. Sort them.",
           "What do I get if I sort {l}?", "The list {l}, sorted")  # fmt: skip
_UP = (
    " from small to large",
    " from smallest to largest",
    " in ascending order",
    ", smallest first",
    " from low to high",
    ", from smallest to largest",
    " from the smallest to the largest",
    " from smallest to biggest",
    " from small to big",
    " from lowest to highest",
    " smallest first",
    " with the smallest first",
    " starting with the smallest",
    " by size",
    ", small to large",
    " ascending",
    " upwards",
)
_LARGE_FIRST = (
    " from large to small",
    " from largest to smallest",
    " in descending order",
    ", largest first",
    ", biggest first",
    " from high to low",
    ", from largest to smallest",
    " from the largest to the smallest",
    " from biggest to smallest",
    " from big to small",
    " from highest to lowest",
    " largest first",
    " with the largest first",
    " starting with the largest",
    ", large to small",
    " descending",
    " downwards",
    " in reverse order",
    " backwards",
)
_ORDERED = ("sort{o}: {l}", "sort {l}{o}", "sort the numbers {l}{o}", "put {l} in order{o}", "arrange {l}{o}",
            "order {l}{o}", "sort these numbers{o}: {l}", "sort{o} {l}", "list {l}{o}", "rank {l}{o}", "sort{o}: {l}",
            "put these numbers{i}: {l}", "put {l}{i}", "arrange{i}: {l}", "sort{i}: {l}", "bring {l}{i}",
            "{l} sorted{o}", "sort the following{o}: {l}", "get {l}{i}", "order these{o}: {l}",
            "arrange these numbers{o}: {l}")  # fmt: skip
_INTO_UP = (" in ascending order", " in rising order", " in order from smallest to largest", " in increasing order")
_INTO_DOWN = (" in descending order", " in falling order", " in order from largest to smallest", " in decreasing order")
ALPHABETICAL = (
    "sort these words: {l}",
    "sort the words {l}",
    "sort {l} alphabetically",
    "put {l} in alphabetical order",
    "sort {l}",
    "order these words alphabetically: {l}",
    "put these words in alphabetical order: {l}",
    "arrange {l} alphabetically",
    "alphabetize {l}",
    "sort {l} by the alphabet",
    "sort {l} from a to z",
    "sort these: {l}",
)


@task("sort", "short")
def sort(rng: random.Random) -> Sample:
    if rng.random() < 0.12:
        return _sort_alphabetically(rng)
    top = rng.choice((10, 100, 100, 1000, 1000, 1001))
    numbers = rng.sample(range(top), rng.choice((2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7)))
    if top >= 1000 and rng.random() < 0.4:  # of different lengths
        shorter = {n % rng.choice((10, 100, 1000)) for n in numbers}
        numbers = rng.sample(sorted(shorter), len(shorter)) if len(shorter) > 1 else numbers
    if top == 1001 and rng.random() < 0.15:
        numbers[rng.randrange(len(numbers))] = 1000
    prompt, down = ask_to_sort(rng, listed(rng, [str(n) for n in numbers]))
    return single("sort", prompt, ", ".join(map(str, sorted(numbers, reverse=down))) + ".")


def ask_to_sort(rng: random.Random, text: str) -> tuple[str, bool]:
    """Returns a request to sort the list of numbers, and whether the largest is first."""
    kind = rng.random()
    down = kind < 0.25
    if kind < 0.5:
        cores = [c.replace("{o}", rng.choice(_LARGE_FIRST if down else _UP)) for c in _ORDERED]
        cores = [c.replace("{i}", rng.choice(_INTO_DOWN if down else _INTO_UP)) for c in cores]
        return phrase(rng, cores, (), l=text), down
    return phrase(rng, _SORT, _SORTED, l=text), down


def _sort_alphabetically(rng: random.Random) -> Sample:
    """Sorts words with different first letters."""
    found: dict[str, str] = {}
    for _ in range(rng.randint(2, 5)):
        word = word_lists.noun(rng)
        found.setdefault(word[0], word)
    several = list(found.values()) if len(found) > 1 else ["pear", "apple"]
    return single("sort", phrase(rng, ALPHABETICAL, (), l=listed(rng, several)), ", ".join(sorted(several)) + ".")
