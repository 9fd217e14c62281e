"""Attacks by clients that request large answers and do not read them, or disconnect in the middle."""

import asyncio
import time

from tests.server.bombs import CHAT
from tests.siege.attacks.bodies import SIZE, filled
from tests.siege.registry import attack
from tests.siege.target import RECEIVE_BUFFER, Streams, Target, Unread

LONGEST = 90.0  # seconds after which the server must have closed a connection that reads nothing
LONG_TOKEN = b"569"  # " multiplication", in the demo's vocabulary
STORY = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 400, "ignore_eos": True}

# Each denoising step of two answers is an event. A step unmasks one position.
STEPS = STORY | {"n": 2, "stream_mode": "denoise", "decoding": {"accept_threshold": 1.0}}


def long_answer(target: Target) -> bytes:
    """Returns a request for about 980 kB of text: 65,500 ids of " multiplication" to /detokenize."""
    return target.post("/detokenize", filled(b'{"tokens":[', LONG_TOKEN, b"]}", SIZE // 8))


async def hold(target: Target, unread: Unread) -> None:
    """Waits until the server closes the connection. Reports a server that does not.

    The time counts while the client's buffer is full and no more data arrives: an answer that waits in the queue has
    sent nothing yet.
    """
    since, waiting = time.monotonic(), 0
    seen = False
    while target.on() and unread.held():
        if not seen and (status := unread.status()):
            target.did[f"unread {status}"] += 1
            seen = True
        if (now := unread.waiting()) != waiting or now < RECEIVE_BUFFER:
            since, waiting = time.monotonic(), now
        if time.monotonic() - since > LONGEST and unread.is_held():
            target.says(f"an answer that nobody reads was held for {LONGEST:.0f} s")
        await target.pause(1 / target.pause_factor)
    target.did["given up by the server"] += target.on()


async def keep_unread(target: Target, request: bytes, count: int) -> None:
    """Keeps `count` unread answers. If the server closes a connection, another request is sent."""

    async def one(number: int) -> None:
        await target.pause(number * 0.2)
        while target.on():
            with target.rebuffed():
                _, writer = await target.connect(narrow=True)
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                unread = Unread(writer)
                try:
                    await target.write(writer, request)
                    await hold(target, unread)
                finally:
                    unread.close()
                    writer.transport.abort()
            await target.pause(2)

    await asyncio.gather(*(one(i) for i in range(count)))


@attack("unread-answers", "8 answers of 980 kB asked for on each of 16 connections, unread", keyed=True, seconds=105)
async def unread_answers(target: Target) -> None:
    await keep_unread(target, long_answer(target) * 8, 16)


@attack("unread-streams", "8 streams of two answers' denoising steps held unread", keyed=True, seconds=105)
async def unread_streams(target: Target) -> None:
    await keep_unread(target, target.post(CHAT, STEPS | {"stream": True}), 8)


@attack("aborted-streams", "streams given up after 0.3 s, 8 at once", keyed=True)
async def aborted_streams(target: Target) -> None:
    request = target.post(CHAT, {**STORY, "stream": True, "stream_mode": "denoise"})

    async def begin(streams: Streams) -> None:
        streams[1].write(request)
        await asyncio.sleep(0.3)
        target.did["aborted"] += 1

    await target.hold(8, begin, pause=0.1)
