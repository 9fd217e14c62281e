"""Attacks with grammars that are slow to compile, or slow to apply to each token.

Which grammars these are depends on the version of the library, so a stand-in takes the time that a grammar names.
`tests/structured_output/slow_grammars.py` says what was seen.
"""

import itertools
from collections.abc import Iterator

from tests.siege.registry import attack
from tests.siege.target import Target

QUEUED = 100
MASKS = 8


async def keep_up(target: Target, count: int, texts: Iterator[str]) -> None:
    """Keeps `count` requests in flight, each with the next regular expression."""

    asked = {"prompt": "hello", "max_tokens": 400, "temperature": 1.0}
    bodies = (asked | {"structured_outputs": {"regex": text}} for text in texts)
    await target.keep_up((target.post("/v1/completions", body) for body in bodies), count)


def slow_mask(number: int) -> str:
    """Returns an expression that is refused by the engine, or, for odd numbers, before it reaches the engine."""
    return f"mask for 20 ms {number}[a-z]{{400}}" if number % 2 else f"mask grows by 100 us {number}[a-z]{{400}}"


@attack(
    "queued-grammars",
    f"{QUEUED} grammars at once that compile for as long as they may, each another; innocents bring new schemas",
    keyed=True,
    seconds=40,
    schemas=True,
)
async def queued_grammars(target: Target) -> None:
    await keep_up(target, QUEUED, (f"compile for 20 s {number}" for number in itertools.count()))


@attack("slow-masks", f"{MASKS} requests at once with grammars of slow masks", keyed=True, seconds=30, slowdown=2.0)
async def slow_masks(target: Target) -> None:
    await keep_up(target, MASKS, map(slow_mask, itertools.count()))


@attack(
    "slow-masks-again",
    f"{MASKS} requests at once with the same few grammars of slow masks, again and again",
    keyed=True,
    seconds=30,
    slowdown=2.0,
)
async def slow_masks_again(target: Target) -> None:
    await keep_up(target, MASKS, itertools.cycle(map(slow_mask, range(4))))
