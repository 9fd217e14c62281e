"""Attacks with large numbers of harmless things: choices, wrong keys, connections, aborted requests."""

import asyncio
from itertools import repeat

from tests.server.bombs import CHAT
from tests.siege.registry import attack
from tests.siege.target import Target

USER = [{"role": "user", "content": "Tell me a story."}]


@attack("choices", "eight requests with n: 128 kept up, with a key of their own", keyed=True, seconds=30)
async def choices(target: Target) -> None:
    await many_choices(target)


@attack("choices-one-key", "the same with the only key there is", keyed=True, seconds=30, one_key=True)
async def choices_one_key(target: Target) -> None:
    await many_choices(target)


async def many_choices(target: Target) -> None:
    request = target.post(CHAT, {"messages": USER, "max_tokens": 64, "n": 128, "temperature": 1.0})
    await target.keep_up(repeat(request), 8, pause=0.2)


@attack("bad-keys", "400 wrong keys a second on 8 connections")
async def bad_keys(target: Target) -> None:
    request = target.head("GET", "/v1/models", "Authorization: Bearer " + "x" * 40)

    await asyncio.gather(*(target.keep_asking(request) for _ in range(8)))


@attack("parameters", "60 kB of query string or of cookies on 8 connections that need no key, as often as answered")
async def parameters(target: Target) -> None:
    requests = [
        target.head("GET", "/health?" + "a&" * 30_000),
        target.head("GET", "/metrics?" + "name[]=a&" * 6_600),
        target.head("GET", "/ready", "Cookie: " + "a=b;" * 15_000),
        target.head("GET", "/playground/state?" + "%61=%62&" * 7_500),
    ]
    await asyncio.gather(*(target.keep_asking(requests[i % len(requests)]) for i in range(8)))


@attack("idle-connections", "3,000 connections held after one GET /health each, 300 opened a second", seconds=30)
async def idle_connections(target: Target) -> None:
    held: list[asyncio.StreamWriter] = []
    request = target.head("GET", "/health")

    async def one(number: int) -> None:
        await target.pause(number / 300)
        if target.on():
            with target.rebuffed():
                reader, writer = await target.connect()
                held.append(writer)
                writer.write(request)
                await target.answer(reader)

    try:
        await asyncio.gather(*(one(i) for i in range(3000)))
        await target.pause(target.left() / target.pause_factor)
    finally:
        for writer in held:
            writer.transport.abort()


@attack("connects", "200 connections a second opened and reset")
async def connects(target: Target) -> None:
    while target.on():
        with target.rebuffed():
            async with target.connection() as (_, writer):
                writer.write(b"GET")
        await target.pause(0.005)
