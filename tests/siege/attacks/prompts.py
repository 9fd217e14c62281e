"""Attacks by valid requests with far too much text, which is costly to render and encode."""

import json

from tests.server.bombs import CHAT
from tests.siege.attacks.bodies import SIZE, filled
from tests.siege.registry import attack
from tests.siege.target import Target

PROSE = "the quick brown fox jumps over the lazy dog, 12 + 30 = 42; "


def text(size: int = SIZE - 500) -> str:
    return (PROSE * (size // len(PROSE) + 1))[:size]


@attack("long-prompts", "2 MiB of prose to five routes in turn, four at once, every second", keyed=True, seconds=20)
async def long_prompts(target: Target) -> None:
    prose = text()
    user = [{"role": "user", "content": prose}]
    requests = [
        target.post(CHAT, {"messages": user}),
        target.post("/v1/completions", {"prompt": prose}),
        target.post("/v1/completions", {"prompt": [text(4000)] * 500}),
        target.post("/generate", {"prompt": prose}),
        target.post("/tokenize", {"prompt": prose}),
        target.post("/tokenize", {"messages": user}),
        target.post("/generate", {"prompt": " " * len(prose)}),
        target.post("/generate", {"prompt": "a" * len(prose)}),
        target.post("/tokenize", {"prompt": "\u00e9" * (len(prose) // 6)}),
    ]
    await target.ask_in_turn(requests, 4, pause=1)


@attack("nearly-long", "prompts of just under what surely is too long, eight at once, every second", keyed=True)
async def nearly_long(target: Target) -> None:
    requests = [target.post("/generate", {"prompt": text(size)}) for size in (16_000, 60_000, 250_000)]
    await target.ask_in_turn(requests, 8, pause=1)


@attack("empty-messages", "70,000 empty messages, two at once, every 2 s", keyed=True, seconds=20)
async def empty_messages(target: Target) -> None:
    start = b'{"messages":['
    item = b'{"role":"user","content":""}'
    request = target.post(CHAT, filled(start, item, b"]}", len(start) + 70_000 * (len(item) + 1) + 2))
    await target.ask_in_turn([request], 2, pause=2)


@attack("template-arguments", "2 MiB of tools and chat_template_kwargs, two at once, every 2 s", keyed=True)
async def template_arguments(target: Target) -> None:
    user = [{"role": "user", "content": "x"}]
    tool = {"type": "function", "function": {"name": "f", "description": text(400), "parameters": {}}}
    many = [tool] * ((SIZE - 2000) // (len(json.dumps(tool)) + 2))
    requests = [
        target.post(CHAT, {"messages": user, "chat_template_kwargs": {"tools": many}}),
        target.post(CHAT, {"messages": user, "tools": many}),
        target.post(CHAT, {"messages": user, "chat_template_kwargs": {"date_string": text(SIZE - 2000)}}),
        target.post(CHAT, {"messages": user, "chat_template_kwargs": {f"k{i}": 1 for i in range(100_000)}}),
    ]
    await target.ask_in_turn(requests, 2, pause=2)
