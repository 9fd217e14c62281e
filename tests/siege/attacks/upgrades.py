"""Attacks by requests that offer another protocol: their body must stay a body, and they must not fill the log.

The parser (httptools 0.9) ends at the head of such a request, and takes what follows for the other protocol. A server
that then parses the body as a request answers it with an error.
"""

import asyncio
from itertools import repeat

from tests.siege.registry import attack
from tests.siege.target import REBUFFED, Target

UPGRADES = (
    ("Connection: Upgrade", "Upgrade: websocket"),
    ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"),
)


async def answers(reader: asyncio.StreamReader, target: Target) -> list[tuple[int, bytes]]:
    """Returns all answers until the server sends nothing for half a second."""
    found: list[tuple[int, bytes]] = []
    try:
        while True:
            found.append(await target.answer(reader, seconds=0.5 if found else 10.0))
    except REBUFFED:
        return found


@attack("lost-bodies", "a chat that offers another protocol, its body in a second segment; 2 a second", keyed=True)
async def lost_bodies(target: Target) -> None:
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
    requests = [target.post("/v1/chat/completions", chat, *upgrade) for upgrade in UPGRADES]
    while target.on():
        for head, _, body in [request.partition(b"\r\n\r\n") for request in requests]:
            with target.rebuffed():
                async with target.connection() as (reader, writer):
                    writer.write(head + b"\r\n\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.1)
                    writer.write(body)
                    (status, text), *more = await answers(reader, target)
                    # a full queue is reported after the body has been read; 503 does not show whether it was read
                    arrived = status == 200 or (status == 429 and b"queue_full" in text) or status == 503
                    if more or not arrived:
                        target.says(f"a POST that offers an upgrade lost its body: {status} {text[:120].decode()}")
            await target.pause(0.5)


@attack("log-flood", "1,000 offered upgrades, refused requests and broken ones a second")
async def log_flood(target: Target) -> None:
    upgrade = target.head("GET", "/health", *UPGRADES[0])
    refused = target.head("GET", "/v1/models")

    await asyncio.gather(
        *(target.keep_asking(upgrade) for _ in range(12)),
        *(target.keep_asking(refused) for _ in range(4)),
        target.keep_up(repeat(b"NOT HTTP\r\n\r\n"), 4, pause=0.02),
    )
