"""Attacks that hold connections: half a header after a valid request, a slow body after its refusal."""

import asyncio
import time
from collections.abc import Callable

from tests.siege.registry import attack
from tests.siege.target import REBUFFED, Streams, Target

SOCKETS = 300  # more than the server's limit of descriptors
DESCRIPTORS = 256
LONGEST = 40.0  # seconds after which a connection without a complete request must have been closed
SECONDS = 50.0


async def hold_open(target: Target, reader: asyncio.StreamReader, drip: Callable[[], None], every: float) -> None:
    """Calls `drip` every `every` seconds until the server closes. Reports a server that does not."""
    since = time.monotonic()
    while target.on():
        drip()
        try:
            async with asyncio.timeout(min(every, target.left() + 0.1)):
                if not await reader.read(4096):
                    target.did["closed by the server"] += 1
                    return
        except TimeoutError:
            pass
        except REBUFFED:
            target.did["closed by the server"] += 1
            return
        if time.monotonic() - since > LONGEST:
            target.says(f"a connection that brings no request was held for {LONGEST:.0f} s")


# Name: what the connections send, a request that is answered, the beginning of another one, and a byte every 2 s.
HELD: dict[str, tuple[str, Callable[[Target], bytes], bytes, bytes]] = {
    "half-headers": (
        "a good GET /health, then half a header, a byte every 2 s",
        lambda target: target.head("GET", "/health"),
        b"GET /health HTTP/1.1\r\nX-Slow: ",
        b"y",
    ),
    "trickled-bodies": (
        "a POST without a key, its body a byte every 2 s",
        lambda target: target.head("POST", "/v1/chat/completions", "Content-Length: 1000000"),
        b"",
        b" ",
    ),
    "silent-connections": ("nothing", lambda target: b"", b"", b""),
}


def _register(name: str, what: str, request: Callable[[Target], bytes], start: bytes, drip: bytes) -> None:
    async def run(target: Target) -> None:
        async def trickle(streams: Streams) -> None:
            reader, writer = streams
            if sent := request(target):
                writer.write(sent)
                await target.answer(reader)
            writer.write(start)
            await hold_open(target, reader, lambda: writer.write(drip), 2)

        await target.hold(SOCKETS, trickle)

    rate = f"{SOCKETS} connections that send {what}; {DESCRIPTORS} descriptors"
    attack(name, rate, seconds=SECONDS, descriptors=DESCRIPTORS)(run)


for _name, _held in HELD.items():
    _register(_name, *_held)
