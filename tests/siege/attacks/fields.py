"""Attacks with the largest value of every field, in several shapes, on every route."""

import random
from collections.abc import Iterator
from itertools import cycle
from typing import Any

from tests.server.bombs import CHAT
from tests.siege.attacks.bodies import SIZE
from tests.siege.registry import attack
from tests.siege.target import Target

LARGEST = SIZE - 4_000  # characters of one value
PARALLEL = 4


def routes() -> list[tuple[str, dict[str, Any], list[str]]]:
    """Returns each route with a valid body and the names of all fields that the body may have."""
    from pydantic import BaseModel

    from runtime.server.anthropic.protocol import MessagesRequest
    from runtime.server.generate.protocol import GenerateRequest
    from runtime.server.openai.protocol import ChatRequest, CompletionRequest
    from runtime.server.openai.responses_protocol import ResponsesRequest

    user = [{"role": "user", "content": "x"}]
    found: list[tuple[str, dict[str, Any], type[BaseModel]]] = [
        (CHAT, {"messages": user, "max_tokens": 2}, ChatRequest),
        ("/v1/completions", {"prompt": "a", "max_tokens": 2}, CompletionRequest),
        ("/generate", {"prompt": "a", "max_tokens": 2}, GenerateRequest),
        ("/v1/responses", {"input": "a", "max_output_tokens": 2}, ResponsesRequest),
        ("/v1/messages", {"messages": user, "max_tokens": 2}, MessagesRequest),
    ]
    return [(path, body, sorted(kind.model_fields)) for path, body, kind in found]


def values() -> dict[str, Any]:
    """Returns values of nearly the size of a body."""
    texts = [("-/" * 950)[: 1_900 - len(str(i))] + str(i) for i in range(LARGEST // 2_000)]
    return {
        "text": "*" * LARGEST,
        "escaped text": "a/" * (LARGEST // 2),
        "texts": texts,
        "names": dict.fromkeys(texts, 1),
        "schema": {"type": "object", "properties": {text: {"enum": ["x"]} for text in texts}},
    }


def forms() -> list[dict[str, Any]]:
    """Returns fields of structured output and tools with these values, one or two levels deeper."""
    found: list[dict[str, Any]] = []
    for value in values().values():
        found += [{"structured_outputs": {name: value}} for name in ("json", "regex", "choice", "grammar")]
        found.append({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": value}}})
        tool = {"type": "function", "function": {"name": "f", "parameters": value}}
        found.append({"tools": [tool], "tool_choice": "required"})
    return found


def bodies() -> Iterator[tuple[str, dict[str, Any]]]:
    """Returns the paths and bodies in a shuffled order, so that a short attack covers every route and shape."""
    more = [
        (path, body, {name: value}) for path, body, names in routes() for value in values().values() for name in names
    ]
    more += [(CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}, form) for form in forms()]
    random.Random(0).shuffle(more)
    return ((path, {**body, **field}) for path, body, field in more)


@attack(
    "largest-fields",
    f"a value of nearly 2 MiB in each field of each route in turn, five shapes of it, {PARALLEL} at once",
    keyed=True,
    seconds=60,
)
async def largest_fields(target: Target) -> None:
    await target.keep_up((target.post(path, body) for path, body in cycle(bodies())), PARALLEL, pause=0.02)
