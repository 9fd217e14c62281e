"""Attacks with grammars that are slow to compile or slow to apply to each token. Most attacks repeat no grammar."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from tests.siege.registry import attack
from tests.siege.target import Target

QUEUED = 100
MASKS = 8


def endless(number: int) -> dict[str, Any]:
    """Returns a schema of a few characters that compiles until its time limit."""
    return {"json": {"type": "integer", "multipleOf": 9_999_991 + 2 * number}}


def branching(number: int) -> dict[str, Any]:
    """Returns a grammar of 1.5 kB with sixty rules, each ambiguous."""
    rules = [f"r{i}: s s | s {chr(97 + i % 26)!r} s".replace("'", '"') for i in range(60)]
    start = [f'start: s "~~{number}"', 's: "" | "a" | ' + " | ".join(f"r{i}" for i in range(60))]
    return {"grammar": "\n".join([*start, *rules])}


def ambiguous(number: int) -> dict[str, Any]:
    """Returns a grammar of eighty characters that matches a text in more ways the longer the text is."""
    forms = (
        's: s s | s s s | s s s s | s s s s s| /[a-z]/ | ""',
        's: /[a-z]/ s | s /[a-z]/ | s s | ""',
        's: /[a-z]/ s /[a-z]/ | s s | ""',
        's: /[a-z]/ s s | ""',
    )
    return {"grammar": f'start: s "~~{number}"\n{forms[number % len(forms)]}'}


async def keep_up(target: Target, count: int, forms: Iterator[dict[str, Any]]) -> None:
    """Keeps `count` requests in flight, each with the next form."""

    async def one() -> None:
        while target.on():
            body = {"prompt": "hello", "max_tokens": 400, "temperature": 1.0, "structured_outputs": next(forms)}
            await target.ask(target.post("/v1/completions", body))
            await target.pause(0.05)

    await asyncio.gather(*(one() for _ in range(count)))


def numbered(*makes: Callable[[int], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (make(number) for number in itertools.count() for make in makes)


@attack(
    "queued-grammars",
    f"{QUEUED} grammars at once that compile for as long as they may, each another; innocents bring new schemas",
    keyed=True,
    seconds=40,
    schemas=True,
)
async def queued_grammars(target: Target) -> None:
    await keep_up(target, QUEUED, numbered(endless, branching))


@attack(
    "slow-masks",
    f"{MASKS} requests at once with grammars of eighty characters that fit a text in ever more ways",
    keyed=True,
    seconds=30,
    slowdown=2.0,
)
async def slow_masks(target: Target) -> None:
    await keep_up(target, MASKS, numbered(ambiguous))


@attack(
    "slow-masks-again",
    f"{MASKS} requests at once with the same few grammars of eighty characters, again and again",
    keyed=True,
    seconds=30,
    slowdown=2.0,
)
async def slow_masks_again(target: Target) -> None:
    await keep_up(target, MASKS, itertools.cycle([ambiguous(number) for number in range(4)]))
