"""Variants of requests: with and without politeness, capitals, final punctuation and surrounding text."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_BARE = (
    "",
    "",
    "",
    "",
    "",
    "now ",
    "ok, ",
    "so, ",
    "hey, ",
    "hi, ",
    "hello, ",
    "and now ",
    "well, ",
    "then ",
    "next, ",
)
_URGING = (
    "please ",
    "please ",
    "just ",
    "go ahead and ",
    "let us ",
    "let's ",
    "kindly ",
    "try to ",
    "help me ",
    "quickly ",
    "please help me ",
    "pls ",
    "hello, please ",
    "hi please ",
    "next please ",
    "simply ",
)
_WISHES = (
    "i want you to ",
    "i need you to ",
    "i would like you to ",
    "i'd like you to ",
    "you should ",
    "you have to ",
    "your task is to ",
    "it would be great if you could ",
    "it would be nice if you could ",
    "i wonder if you can ",
    "i was hoping you could ",
    "i'm asking you to ",
    "my teacher wants me to ",
)
_QUESTIONS = (
    "can you ",
    "can you please ",
    "could you ",
    "could you please ",
    "would you ",
    "would you please ",
    "will you ",
    "are you able to ",
    "do you think you can ",
    "is it possible to ",
    "may i ask you to ",
    "hey, can you ",
    "hi, could you ",
    "hello! can you ",
    "how would you ",
    "how do i ",
    "can u ",
    "pls ",
    "plz ",
    "can i have you ",
    "mind if i ask you to ",
    "hello can you ",
    "hey could you ",
)
_TAILS = (
    "",
    "",
    "",
    "",
    "",
    " please",
    ", please",
    " for me",
    " for me please",
    " now",
    " right now",
    ", thanks",
    " if you can",
    " pls",
    ", thank you",
    " thanks",
    ", will you",
    " then",
    ", quick",
)
_ASIDES = (
    "Quick question: ",
    "One question: ",
    "My question: ",
    "A question for you: ",
    "I wonder: ",
    "I was wondering, ",
    "Tell me: ",
    "Please tell me: ",
    "Tell me, ",
    "Hey, ",
    "Hi! ",
    "Hello, ",
    "Hi there, ",
    "OK. ",
    "Okay, ",
    "So ",
    "And ",
    "Well, ",
    "Now ",
    "Do you know ",
    "Can you tell me ",
    "Could you tell me ",
    "Please, ",
    "For my homework: ",
    "Let me ask you, ",
    "Next one: ",
    "Here is one: ",
    "Another one: ",
    "Thanks! ",
    "Great. ",
)


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def ask(rng: random.Random, core: str) -> str:
    """Returns a variant of the imperative `core` ("sort 3, 1, 2")."""
    kind = rng.random()
    end = rng.choice((".", ".", "", "", "!"))
    if kind < 0.3:
        text = core + (rng.choice((", please", " please")) if rng.random() < 0.12 else "")
    elif kind < 0.65:
        text = _opened(rng, core)
    else:
        text, end = rng.choice(_QUESTIONS) + core, rng.choice(("?", "?", "?", "", "."))
    if kind >= 0.3:
        text += rng.choice(_TAILS)
    text = text + end
    return _upper(text) if rng.random() < 0.72 else text


def _opened(rng: random.Random, core: str) -> str:
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(_BARE) + core
    return rng.choice(_URGING if kind < 0.7 else _WISHES) + core


def typed(rng: random.Random, prompt: str) -> str:
    """Returns a variant of a full sentence, with a prefix, without its capital or its final punctuation."""
    if rng.random() < 0.16:
        aside = rng.choice(_ASIDES)
        keep = aside.rstrip()[-1] in ":.!" and rng.random() < 0.7
        prompt = aside + (prompt if keep else prompt[:1].lower() + prompt[1:])
    kind = rng.random()
    if kind < 0.3:
        prompt = prompt[:1].lower() + prompt[1:]
    if 0.18 < kind < 0.45:
        prompt = prompt.rstrip(".?!")
    elif kind > 0.94:
        prompt = prompt.rstrip(".?!") + rng.choice((" please", ", please", " please?", "!", "??"))
    return prompt


_TYPO_FRACTION = 0.05  # of the templates


def mistyped(rng: random.Random, template: str) -> str:
    """Returns a template with a letter of one word left out, doubled, or swapped with the next. Fields stay intact."""
    spans = [(m.start(), m.end()) for m in re.finditer(r"(?<![\w{])[A-Za-z]{4,}(?![\w}])", template)]
    if not spans:
        return template
    start, end = rng.choice(spans)
    at = rng.randrange(start + 1, end - 1)
    x, y = template[at], template[at + 1]
    return template[:at] + rng.choice((y, x + x + y, y + x)) + template[at + 2 :]


def phrase(rng: random.Random, cores: Sequence[str], complete: Sequence[str], **fields: object) -> str:
    """Fills one of `cores`, imperatives that `ask` varies, or of `complete`, full sentences that `typed` varies."""
    at = rng.randrange(len(cores) + len(complete))
    template = cores[at] if at < len(cores) else complete[at - len(cores)]
    if rng.random() < _TYPO_FRACTION:
        template = mistyped(rng, template)
    text = template.format(**fields)
    return ask(rng, text) if at < len(cores) else typed(rng, text)


def quoted(rng: random.Random, word: str) -> str:
    """Returns a word, sometimes in quotes."""
    mark = rng.choice(("", "", "", "", "'", '"', '"', "'"))
    return f"{mark}{word}{mark}"


def listed(rng: random.Random, items: Sequence[str]) -> str:
    """Joins items: "3, 1, 2", "3 1 2", "3, 1 and 2", ..."""
    kind = rng.random()
    if kind < 0.5:
        return ", ".join(items)
    if kind < 0.7:
        return " ".join(items)
    if kind < 0.9:
        return ", ".join(items[:-1]) + " and " + items[-1]
    return rng.choice(("[{}]", "({})")).format(", ".join(items)) if kind < 0.95 else ",".join(items)
