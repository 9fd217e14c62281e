"""Attacks by legal requests with the most work per step: logits processors, stop strings and logprobs."""

from collections.abc import Callable
from itertools import count
from typing import Any

from tests.siege.registry import attack, control
from tests.siege.target import Target

REQUESTS = 8
LONG = 3_000  # tokens, a long history for the penalties
BIASED = {str(token): 0.001 * (token % 7) for token in range(1_000)}
PENALTIES = {"repetition_penalty": 1.01, "presence_penalty": 0.1, "frequency_penalty": 0.01, "min_tokens": LONG - 1}
STOPS = [f"{'a' * 1_000}{number}" for number in range(32)]


def body(number: int) -> dict[str, Any]:
    asked = {"prompt": f"{number}: " + "a" * 500, "max_tokens": LONG, "temperature": 1.0, "stop": STOPS}
    return asked | PENALTIES | {"logit_bias": BIASED, "stop_token_ids": list(range(100)), "logprobs": 5}


def control_body(number: int) -> dict[str, Any]:
    """Returns a request for as many tokens without these fields. Any batch of long answers slows others down."""
    return {"prompt": f"{number}: " + "a" * 500, "max_tokens": LONG, "temperature": 1.0, "ignore_eos": True}


@attack(
    "logits-processors",
    f"{REQUESTS} long answers at once with all penalties, 1,000 biased ids, 100 stop ids, 32 stop strings and logprobs",
    keyed=True,
    seconds=30,
    slowdown=2.0,
)
async def logits_processors(target: Target) -> None:
    await _answers(target, body)


@control("logits-processors")
async def long_answers(target: Target) -> None:
    await _answers(target, control_body)


async def _answers(target: Target, body: Callable[[int], dict[str, Any]]) -> None:
    await target.keep_up((target.post("/v1/completions", body(number)) for number in count()), REQUESTS)
