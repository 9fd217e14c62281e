"""Variants of requests: with and without politeness, capitals, final punctuation and surrounding text."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import partial

from runtime.demo.tasks import phrasing as shipped

_URGING = (
    *shipped.URGING, "please help me ", "pls ", "hello, please ", "hi please ", "next please ", "simply ",
)  # fmt: skip
_QUESTIONS = (
    *shipped.QUESTIONS, "can u ", "pls ", "plz ", "can i have you ", "mind if i ask you to ", "hello can you ",
    "hey could you ",
)  # fmt: skip
_TAILS = (
    *shipped.TAILS, " pls", ", thank you", " thanks", ", will you", " then", ", quick",
)  # fmt: skip


ask = partial(shipped.ask, urging=_URGING, questions=_QUESTIONS, tails=_TAILS)
_TYPO_FRACTION = 0.05  # of the templates


def mistyped(rng: random.Random, template: str) -> str:
    """Returns a template with a letter of one word left out, doubled, or swapped with the next; fields stay."""
    spans = [(m.start(), m.end()) for m in re.finditer(r"(?<![\w{])[A-Za-z]{4,}(?![\w}])", template)]
    if not spans:
        return template
    start, end = rng.choice(spans)
    at = rng.randrange(start + 1, end - 1)
    x, y = template[at], template[at + 1]
    return template[:at] + rng.choice((y, x + x + y, y + x)) + template[at + 2 :]


def phrase(rng: random.Random, cores: Sequence[str], complete: Sequence[str], **fields: object) -> str:
    """Fills one of `cores`, imperatives that `ask` rephrases, or of `complete`, used unchanged."""
    at = rng.randrange(len(cores) + len(complete))
    template = cores[at] if at < len(cores) else complete[at - len(cores)]
    if rng.random() < _TYPO_FRACTION:
        template = mistyped(rng, template)
    text = template.format(**fields)
    return ask(rng, text) if at < len(cores) else shipped.typed(rng, text)
