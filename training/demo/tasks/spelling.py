"""Spelling and reversing words, known or not, letter by letter."""

from __future__ import annotations

import random

from training.demo.tasks import word_lists
from training.demo.tasks.base import Sample, single, task
from training.demo.tasks.phrasing import phrase, quoted
from training.demo.vocabulary import ALPHABETIC

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
    "show me how to spell {w}",
    "tell me how {w} is spelled",
    "give me the letters of {w}",
    "give me the spelling of {w}",
    "spell this: {w}",
    "spell this word: {w}",
    "spell this word for me: {w}",
    "spell: {w}",
    "separate the letters of {w}",
    "write {w} one letter at a time",
    "write out the letters of {w}",
    "say {w} letter by letter",
    "spell {w} with dashes",
    "put dashes between the letters of {w}",
    "name the letters in {w}",
    "write down how {w} is spelled",
    "tell me the spelling of {w}",
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
    "How do I spell {w}?",
    "How do I spell the word {w}?",
    "how do u spell {w}",
    "how is {w} written letter by letter?",
    "What is the right spelling of {w}?",
    "What's the spelling of {w}?",
    "What letters are in {w}?",
    "What letters make up {w}?",
    "{w}: spell it",
    "{w}, spell it please",
    "{w}. Spell that.",
    "{w}: how do you spell it?",
    "{w} - what are the letters?",
    "And how is {w} spelled?",
    "The letters of {w}",
    "the word {w}, letter by letter",
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
    "reverse this: {w}",
    "reverse the name {w}",
    "reverse the order of the letters in {w}",
    "reverse the order of the letters of {w}",
    "spell the word {w} backwards",
    "say the word {w} backwards",
    "write this backwards: {w}",
    "write this word backwards: {w}",
    "write the letters of {w} backwards",
    "write the letters of {w} in reverse order",
    "show {w} backwards",
    "show me {w} backwards",
    "tell me {w} backwards",
    "tell me what {w} is backwards",
    "read {w} backwards",
    "turn {w} backwards",
    "flip {w}",
    "flip {w} around",
    "mirror {w}",
    "invert {w}",
    "put the letters of {w} in reverse order",
    "print {w} reversed",
    "write {w} starting with the last letter",
    "spell {w} from the last letter to the first",
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
    "the word {w}, backwards",
    "the word {w} backwards",
    "the word {w} in reverse",
    "the word {w}, but backwards",
    "{w}, backwards",
    "{w} but backwards",
    "{w} spelled backwards",
    "{w} written backwards",
    "{w} read backwards",
    "What is the reverse of {w}?",
    "What's the reverse of {w}?",
    "What's {w} in reverse?",
    "What is the word {w} backwards?",
    "What does {w} look like backwards?",
    "What does {w} look like in reverse?",
    "What does {w} look like reversed?",
    "What does {w} say backwards?",
    "How does {w} look backwards?",
    "How would {w} look in reverse?",
    "How would you spell {w} backwards?",
    "How is {w} written from right to left?",
    "How do you spell {w} backwards?",
    "How do I write {w} backwards?",
    "How is {w} spelled backwards?",
    "the reverse of {w}",
    "Which word is {w} backwards?",
    "What do I get if I reverse {w}?",
    "What is {w} from right to left?",
)
MAX_LETTERS = 16


def word(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.25:
        found = word_lists.noun(rng)
    elif kind < 0.65:  # each of these is one token, whose letters the model has to know
        found = rng.choice(ALPHABETIC)
    elif kind < 0.82:
        found = word_lists.made_up(rng)
    elif kind < 0.9:
        found = word_lists.letters(rng, 2, 12)
    elif kind < 0.93:
        found = "".join(word_lists.made_up(rng) for _ in range(4))[: rng.randint(12, MAX_LETTERS)]
    else:
        found = word_lists.name(rng)
    if rng.random() < 0.08:
        found = found.capitalize()
    if rng.random() < 0.03:
        found = found.upper()
    return found[:MAX_LETTERS]


@task("spell", "short")
def spell(rng: random.Random) -> Sample:
    asked = word(rng)
    return single("spell", phrase(rng, SPELL, HOW, w=quoted(rng, asked)), "-".join(asked) + ".")


@task("reverse", "short")
def reverse(rng: random.Random) -> Sample:
    asked = word(rng)
    return single("reverse", phrase(rng, REVERSE, BACKWARDS, w=quoted(rng, asked)), asked[::-1] + ".")
