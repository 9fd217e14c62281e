"""Spelling and reversing words, known or not, letter by letter."""

from __future__ import annotations

import random

from runtime.demo.tasks import spelling as shipped
from runtime.demo.tasks.base import Sample, single
from runtime.demo.tasks.phrasing import quoted
from training.demo.tasks.base import task
from training.demo.tasks.phrasing import phrase

_SPELL = (
    *shipped.SPELL, "show me how to spell {w}", "tell me how {w} is spelled", "give me the letters of {w}",
    "give me the spelling of {w}", "spell this: {w}", "spell this word: {w}", "spell this word for me: {w}",
    "spell: {w}", "separate the letters of {w}", "write {w} one letter at a time", "write out the letters of {w}",
    "say {w} letter by letter", "spell {w} with dashes", "put dashes between the letters of {w}",
    "name the letters in {w}", "write down how {w} is spelled", "tell me the spelling of {w}",
)  # fmt: skip
_HOW = (
    *shipped.HOW, "How do I spell {w}?", "How do I spell the word {w}?", "how do u spell {w}",
    "how is {w} written letter by letter?", "What is the right spelling of {w}?", "What's the spelling of {w}?",
    "What letters are in {w}?", "What letters make up {w}?", "{w}: spell it", "{w}, spell it please",
    "{w}. Spell that.", "{w}: how do you spell it?", "{w} - what are the letters?", "And how is {w} spelled?",
    "The letters of {w}", "the word {w}, letter by letter",
)  # fmt: skip
_REVERSE = (
    *shipped.REVERSE, "reverse this: {w}", "reverse the name {w}", "reverse the order of the letters in {w}",
    "reverse the order of the letters of {w}", "spell the word {w} backwards", "say the word {w} backwards",
    "write this backwards: {w}", "write this word backwards: {w}", "write the letters of {w} backwards",
    "write the letters of {w} in reverse order", "show {w} backwards", "show me {w} backwards",
    "tell me {w} backwards", "tell me what {w} is backwards", "read {w} backwards", "turn {w} backwards", "flip {w}",
    "flip {w} around", "mirror {w}", "invert {w}", "put the letters of {w} in reverse order", "print {w} reversed",
    "write {w} starting with the last letter", "spell {w} from the last letter to the first",
)  # fmt: skip
_BACKWARDS = (
    *shipped.BACKWARDS, "the word {w}, backwards", "the word {w} backwards", "the word {w} in reverse",
    "the word {w}, but backwards", "{w}, backwards", "{w} but backwards", "{w} spelled backwards",
    "{w} written backwards", "{w} read backwards", "What is the reverse of {w}?", "What's the reverse of {w}?",
    "What's {w} in reverse?", "What is the word {w} backwards?", "What does {w} look like backwards?",
    "What does {w} look like in reverse?", "What does {w} look like reversed?", "What does {w} say backwards?",
    "How does {w} look backwards?", "How would {w} look in reverse?", "How would you spell {w} backwards?",
    "How is {w} written from right to left?", "How do you spell {w} backwards?", "How do I write {w} backwards?",
    "How is {w} spelled backwards?", "the reverse of {w}", "Which word is {w} backwards?",
    "What do I get if I reverse {w}?", "What is {w} from right to left?",
)  # fmt: skip


@task("spell", "short")
def spell(rng: random.Random) -> Sample:
    word = shipped.any_word(rng)
    return single("spell", phrase(rng, _SPELL, _HOW, w=quoted(rng, word)), "-".join(word) + ".")


@task("reverse", "short")
def reverse(rng: random.Random) -> Sample:
    word = shipped.any_word(rng)
    return single("reverse", phrase(rng, _REVERSE, _BACKWARDS, w=quoted(rng, word)), word[::-1] + ".")
