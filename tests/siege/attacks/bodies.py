"""Attacks with a valid key and invalid bodies of up to 2 MiB, which are costly to check."""

import json
from typing import Any

from tests.server.bombs import CHAT, LARGEST, SHAPES
from tests.siege.registry import attack
from tests.siege.target import Target

SIZE = 2 * 2**20 - 1000  # a little under the limit on bodies
AT_ONCE = 12
PARTS = SHAPES["parts {}"][1]


def filled(start: bytes, item: bytes, end: bytes, size: int = SIZE) -> bytes:
    """Returns `start`, comma-separated copies of `item` up to `size` bytes in total, and `end`."""
    return start + b",".join([item] * ((size - len(start) - len(end)) // (len(item) + 1))) + end


@attack("validation-bombs", "twelve at once of 2 MiB with 20,000 empty parts, every 3 s", keyed=True, seconds=20)
async def validation_bombs(target: Target) -> None:
    await target.ask_in_turn([target.post(CHAT, PARTS)], AT_ONCE, pause=3)


@attack("validation-siblings", "all other shapes of bodies in turn, four at once, every second", keyed=True, seconds=50)
async def validation_siblings(target: Target) -> None:
    bodies = [
        *SHAPES.values(),
        *LARGEST.values(),
        ("/v1/responses", b'{"input":"' + b"a" * (SIZE - 30) + b'"}'),
        ("/v1/infill", b'{"text":"a' + b"<mask:1>" * (SIZE // 8 - 2) + b'"}'),
    ]
    await target.ask_in_turn([target.post(path, body) for path, body in bodies], 4, pause=1)


def hidden_values() -> list[tuple[str, bytes]]:
    """Returns the paths and bodies of requests with few JSON values, but with many in the arguments of a call.

    The arguments of their first call are an open string.
    """
    lists = json.dumps({"a": [[]] * (SIZE // 3 - 1000)}, separators=(",", ":"))
    user = {"role": "user", "content": "x"}
    calls = [{"function": {"name": "f", "arguments": text}} for text in ('"', lists)]
    items = [{"type": "function_call", "call_id": "c", "name": "f", "arguments": text} for text in ('"', lists)]
    bodies: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {"messages": [user, {"role": "assistant", "tool_calls": calls}, user], "max_tokens": 4}),
        ("/v1/responses", {"input": [*items, user], "max_output_tokens": 4}),
    ]
    return [(path, json.dumps(body).encode()) for path, body in bodies]


@attack("hidden-values", "calls with 2 MiB of lists as arguments, after an open string, four at once", keyed=True)
async def hidden_values_attack(target: Target) -> None:
    await target.ask_in_turn([target.post(path, body) for path, body in hidden_values()], 4, pause=0.2)
