"""Clients who ask for much and do not read it, or go away in the middle."""

import asyncio
import time

from tests.siege.attacks.bodies import CHAT, SIZE, filled
from tests.siege.registry import attack
from tests.siege.target import Target, in_queue

RECEIVE_BUFFER = 4096  # bytes of ours: what is not read waits at the server
LONGEST = 90.0  # seconds after which the server must have given up who takes nothing
LONG_TOKEN = b"694"  # " backwards", in the demo's vocabulary
STORY = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 400, "ignore_eos": True}


async def unread(target: Target, request: bytes, count: int) -> None:
    """Keep `count` answers asked for and unread; where the server gives one up, another is begun."""

    async def one(number: int) -> None:
        await target.pause(number * 0.2)
        while target.on():
            with target.rebuffed():
                _, writer = await target.connect(RECEIVE_BUFFER)
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                try:
                    await target.write(writer, request)
                    since = time.monotonic()
                    while target.on() and in_queue(writer):
                        if time.monotonic() - since > LONGEST:
                            target.says(f"an answer that nobody reads was held for {LONGEST:.0f} s")
                        await target.pause(1)
                    target.did["given up by the server"] += target.on()
                finally:
                    writer.transport.abort()
            await target.pause(2)

    await asyncio.gather(*(one(i) for i in range(count)))


@attack("unread-answers", "four answers of 1.3 MB asked for on each of 16 connections, unread", keyed=True, seconds=105)
async def unread_answers(target: Target) -> None:
    body = filled(b'{"tokens":[', LONG_TOKEN, b"]}", SIZE // 4)
    await unread(target, target.post("/detokenize", body) * 4, 16)


@attack("unread-streams", "16 streams of denoising steps held unread", keyed=True, seconds=105)
async def unread_streams(target: Target) -> None:
    body = {**STORY, "max_tokens": 2000, "stream": True, "stream_mode": "denoise", "decoding": {"mode": "quality"}}
    await unread(target, target.post(CHAT, body), 16)


@attack("aborted-streams", "streams given up after 0.3 s, 8 at once", keyed=True)
async def aborted_streams(target: Target) -> None:
    request = target.post(CHAT, {**STORY, "stream": True, "stream_mode": "denoise"})

    async def one() -> None:
        while target.on():
            with target.rebuffed():
                async with target.connection() as (_, writer):
                    writer.write(request)
                    await asyncio.sleep(0.3)
            target.did["aborted"] += 1
            await target.pause(0.1)

    await asyncio.gather(*(one() for _ in range(8)))
