"""Attacks with only legal requests of the largest size: many bodies at once, and long prompts that are aborted."""

import asyncio
import json
import random
import time
from typing import Any

from tests.server.bombs import CHAT
from tests.siege.attacks.bodies import SIZE
from tests.siege.registry import attack
from tests.siege.target import REBUFFED, Target

CROWD = 300
USER = [{"role": "user", "content": "Solve: 12 + 30."}]
VALUES, MESSAGES = 4_000, 2_000  # a little under the limits on a body

LONG_CHAT = {
    "messages": [{"role": "user", "content": " backwards" * 900}],  # nearly the demo's maximum length
    "max_tokens": 4,
    "decoding": {"accept_threshold": 0.01},  # one step per block, to load the server and not the model
}
AFTERWARDS = 30.0  # seconds in which a long prompt must be answered after others were aborted
ROUND = 5.0  # seconds of aborted prompts before one that must be answered


def padded(body: dict[str, Any], size: int = SIZE) -> bytes:
    """Returns `body` with a note that fills it to `size`. Only the limit of the body applies to the note's length."""
    missing = size - len(json.dumps({**body, "metadata": {"note": ""}}))
    return json.dumps({**body, "metadata": {"note": "n" * max(missing, 0)}}).encode()


def legal_bodies() -> list[bytes]:
    """Returns chats of nearly 2 MiB with a short prompt, each just inside one of the limits on bodies."""
    chat = {"messages": USER, "max_tokens": 4}
    values = list(range(1_000_000_000_000, 1_000_000_000_000 + VALUES))
    return [
        padded(chat | {"chat_template_kwargs": {"unused": values}}),
        padded(chat | {"chat_template_kwargs": {"unused": [f"{i:0>400}" for i in range(VALUES)]}}),
        padded(chat | {"messages": [{"role": "user", "content": ""}] * MESSAGES}),
        padded(chat),
    ]


@attack(
    "crowd-of-bodies",
    f"{CROWD} connections that each send a legal chat of nearly 2 MiB every 5 s, half of them gone before the answer",
    keyed=True,
    seconds=30,
)
async def crowd_of_bodies(target: Target) -> None:
    requests = [target.post(CHAT, body) for body in legal_bodies()]

    async def one(number: int) -> None:
        rng = random.Random(number)
        request = requests[number // 2 % len(requests)]
        await target.pause(rng.uniform(0, 2))
        while target.on():
            with target.rebuffed():
                async with target.connection() as (reader, writer):
                    await target.write(writer, request)
                    if number % 2:
                        await asyncio.sleep(rng.uniform(0, 0.5))
                        target.did["gone before the answer"] += 1
                    else:
                        await target.answer(reader)
            await target.pause(5)

    await asyncio.gather(*(one(i) for i in range(CROWD)))


async def one_answer(target: Target, request: bytes, seconds: float) -> tuple[int, bytes]:
    """Returns the status and the beginning of the body of an answer, also after the attack's time is over."""
    async with asyncio.timeout(seconds), target.connection() as (reader, writer):
        writer.write(request)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), await reader.read(300)


async def still_answered(target: Target, request: bytes, name: str) -> None:
    """Repeats a prompt until it is answered, for up to `AFTERWARDS`. Reports a prompt without an answer."""
    end = time.monotonic() + AFTERWARDS
    found = "nothing"
    while (left := end - time.monotonic()) > 1 and not target.stopped():
        try:
            status, text = await one_answer(target, request, left)
        except REBUFFED as error:
            found = f"{type(error).__name__} {error}".strip()
        else:
            if status == 200:
                target.did[f"{name} answered"] += 1
                return
            found = f"{status} {text[-120:].decode(errors='replace')}"
        await asyncio.sleep(0.5)
    if not target.stopped():
        target.says(f"{name} got no answer for {AFTERWARDS:.0f} s after others were given up: {found}")


def answers_in_pieces() -> list[tuple[str, bytes]]:
    """Returns paths and bodies with an earlier answer in the maximum number of pieces, which an API joins."""
    user = {"role": "user", "content": "x"}
    # Python stores the joined text with 4 bytes per character if the first piece needs 4
    texts = ["\U0001f600", *["a" * 920] * MESSAGES]
    items = [{"role": "assistant", "content": text} for text in texts]
    reasoning = [{"type": "reasoning", "content": text} for text in texts]
    blocks = [{"type": "text", "text": text} for text in texts]
    thinking = [{"type": "thinking", "thinking": text, "signature": ""} for text in texts]
    named = {"tools": [{"type": "x"}] * 255 + [{"type": "web_search"}], "include": ["web_search_call.sources"] * 15_000}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/responses", {"input": [*items, user], "max_output_tokens": 4}),
        ("/v1/responses", {"input": [*reasoning, user], "max_output_tokens": 4}),
        ("/v1/messages", {"messages": [user, {"role": "assistant", "content": blocks}, user], "max_tokens": 4}),
        ("/v1/messages", {"messages": [user, {"role": "assistant", "content": thinking}, user], "max_tokens": 4}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 4, **named}),
    ]
    return [(path, json.dumps(body, ensure_ascii=False).encode()) for path, body in bodies]


@attack("answers-in-pieces", "earlier answers of 2,000 pieces in turn, four at once, every second", keyed=True)
async def many_pieces(target: Target) -> None:
    await target.ask_in_turn([target.post(path, body) for path, body in answers_in_pieces()], 4, pause=1)


@attack("aborted-prompts", "long legal prompts given up after 1 to 200 ms, 20 a second", keyed=True)
async def aborted_prompts(target: Target) -> None:
    rng = random.Random(0)
    notes = {"chat_template_kwargs": {f"note{i}": "n" * 10_000 for i in range(60)}}
    earnest = {  # 9 kB are in the queue of short work; 600 kB more, which no template reads, in that of long work
        "a long chat": target.post(CHAT, LONG_CHAT),
        "a long chat with notes": target.post(CHAT, LONG_CHAT | notes),
    }
    requests = list(earnest.values())

    async def one() -> None:
        with target.rebuffed():
            async with target.connection() as (_, writer):
                writer.write(rng.choice(requests))
                await asyncio.sleep(rng.uniform(0.001, 0.2))
        target.did["given up"] += 1

    while target.on():
        end = time.monotonic() + ROUND
        async with asyncio.TaskGroup() as running:
            while target.on() and time.monotonic() < end:
                running.create_task(one())
                await target.pause(0.05)
        await asyncio.gather(*(still_answered(target, request, name) for name, request in earnest.items()))
