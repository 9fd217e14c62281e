"""Attacks by requests that offer another protocol: their body must stay a body, and they must not fill the log."""

import asyncio

from tests.siege.registry import attack
from tests.siege.target import REBUFFED, Target

UPGRADES = (
    ("Connection: Upgrade", "Upgrade: websocket"),
    ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"),
)
INNER = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


async def answers(reader: asyncio.StreamReader, target: Target) -> list[tuple[int, bytes]]:
    """Returns all answers until the server sends nothing for half a second."""
    found: list[tuple[int, bytes]] = []
    try:
        while True:
            found.append(await target.answer(reader, seconds=0.5 if found else 10.0))
    except REBUFFED:
        return found


@attack("smuggling", "an offered upgrade whose body, in a second segment, is a request; 4 a second")
async def smuggling(target: Target) -> None:
    while target.on():
        for upgrade in UPGRADES:
            with target.rebuffed():
                async with target.connection() as (reader, writer):
                    writer.write(target.head("POST", "/health", f"Content-Length: {len(INNER)}", *upgrade))
                    await writer.drain()
                    await asyncio.sleep(0.1)
                    writer.write(INNER)
                    if len(found := await answers(reader, target)) > 1:
                        target.says(f"a body became a request: answers {[status for status, _ in found]}")
            await target.pause(0.25)


@attack("lost-bodies", "a chat that offers h2c, its body in a second segment; 2 a second", keyed=True)
async def lost_bodies(target: Target) -> None:
    chat = target.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}, *UPGRADES[1]
    )
    head, _, body = chat.partition(b"\r\n\r\n")
    while target.on():
        with target.rebuffed():
            async with target.connection() as (reader, writer):
                writer.write(head + b"\r\n\r\n")
                await writer.drain()
                await asyncio.sleep(0.1)
                writer.write(body)
                (status, text), *more = await answers(reader, target)
                refused = status == 400 and b"invalid_http" in text
                # a full queue is reported after the body has been read; 503 does not show whether the body was read
                arrived = status == 200 or (status == 429 and b"queue_full" in text) or status == 503
                if more or not (arrived or refused):
                    target.says(f"a POST that offers h2c lost its body: {status} {text[:120].decode()}")
        await target.pause(0.5)


@attack("log-flood", "1,000 offered upgrades, refused requests and broken ones a second")
async def log_flood(target: Target) -> None:
    upgrade = target.head("GET", "/health", *UPGRADES[0])
    refused = target.head("GET", "/v1/models")

    async def broken() -> None:
        while target.on():
            await target.ask(b"NOT HTTP\r\n\r\n")
            await target.pause(0.02)

    sorts = [
        *(target.keep_asking(upgrade) for _ in range(12)),
        *(target.keep_asking(refused) for _ in range(4)),
        *(broken() for _ in range(4)),
    ]
    await asyncio.gather(*sorts)
