"""Spelling and reversing words, known or not, letter by letter."""

from __future__ import annotations

import random

from runtime.demo.tasks import word_lists
from runtime.demo.tasks.base import Sample, single, task
from runtime.demo.tasks.phrasing import phrase, quoted
from runtime.demo.vocabulary import ALPHABETIC

SPELL = (
    "spell {w}",
    "spell {w}",
    "spell {w}",
    "spell the word {w}",
    "spell the word {w}",
    "spell the word: {w}",
    "spell {w} letter by letter",
    "spell out {w}",
    "spell out the word {w}",
    "write {w} letter by letter",
    "write the letters of {w}",
    "write {w} with dashes between the letters",
    "list the letters of {w}",
    "list the letters in {w}",
    "spell the name {w}",
    "break {w} into letters",
    "say the letters of {w}",
    "tell me the letters of {w}",
    "split {w} into letters",
    "show me how {w} is spelled",
    "tell me how to spell {w}",
)
HOW = (
    "How do you spell {w}?",
    "How do you spell the word {w}?",
    "How is {w} spelled?",
    "How is the word {w} spelled?",
    "How to spell {w}?",
    "How does one spell {w}?",
    "What are the letters of {w}?",
    "Which letters are in {w}?",
    "What is the spelling of {w}?",
    "{w}, letter by letter",
    "{w} letter by letter, please.",
    "The spelling of {w}",
    "Spelling of {w}?",
)
REVERSE = (
    "reverse {w}",
    "reverse {w}",
    "reverse {w}",
    "reverse the word {w}",
    "reverse the word {w}",
    "reverse the letters of {w}",
    "reverse the letters in {w}",
    "reverse the string {w}",
    "reverse the text {w}",
    "reverse this word: {w}",
    "reverse: {w}",
    "write {w} backwards",
    "write {w} backwards",
    "write the word {w} backwards",
    "write {w} in reverse",
    "write {w} from back to front",
    "say {w} backwards",
    "spell {w} backwards",
    "turn {w} around",
    "turn the word {w} around",
    "flip the word {w}",
    "flip the letters of {w}",
    "read {w} from right to left",
    "mirror the word {w}",
    "give me {w} backwards",
)
BACKWARDS = (
    "What is {w} backwards?",
    "What is {w} reversed?",
    "What's {w} backwards?",
    "What is {w} spelled backwards?",
    "What is {w} in reverse?",
    "How do you write {w} backwards?",
    "{w} backwards",
    "{w} backwards?",
    "{w} reversed",
    "What do you get when you reverse {w}?",
    "How does {w} read backwards?",
    "{w} the other way round",
    "{w} from back to front",
    "{w} in reverse",
)
_MAX_LETTERS = 16


def any_word(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.25:
        word = word_lists.noun(rng)
    elif kind < 0.65:  # each of these is one token, whose letters the model has to know
        word = rng.choice(ALPHABETIC)
    elif kind < 0.82:
        word = word_lists.made_up(rng)
    elif kind < 0.93:
        word = word_lists.letters(rng, 2, 12)
    else:
        word = word_lists.name(rng)
    if rng.random() < 0.08:
        word = word.capitalize()
    if rng.random() < 0.03:
        word = word.upper()
    return word[:_MAX_LETTERS]


@task("spell", "short")
def spell(rng: random.Random) -> Sample:
    word = any_word(rng)
    return single("spell", phrase(rng, SPELL, HOW, w=quoted(rng, word)), "-".join(word) + ".")


@task("reverse", "short")
def reverse(rng: random.Random) -> Sample:
    word = any_word(rng)
    return single("reverse", phrase(rng, REVERSE, BACKWARDS, w=quoted(rng, word)), word[::-1] + ".")
