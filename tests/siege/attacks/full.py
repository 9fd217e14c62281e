"""Attacks that exhaust the server's shared limits, while honest readers must receive their complete answers."""

import asyncio
import random
import re

from tests.server.bombs import CHAT
from tests.siege.attacks.readers import STEPS, STORY, long_answer
from tests.siege.registry import attack
from tests.siege.target import REBUFFED, Target

HEAD = 60_000  # bytes of a head that never ends, a little under the limit
HEADS = 1_200  # their heads exceed what all connections together may buffer
HONEST = 4
SLOW_PIECE, SLOW_EVERY = 4096, 0.1  # bytes and seconds: an honest client on a slow network

LAST = b"\r\n0\r\n\r\n"  # the chunk that ends a stream

HOUSE = 64  # connections
PROBES_EVERY = 0.2  # seconds


async def read_all(target: Target, request: bytes, name: str, slow: bool = False) -> None:
    """Reads one answer to its end or to that of the attack. Reports an answer that is cut off."""
    got, end, length = 0, b"", None
    try:
        reader, writer = await target.connect(narrow=slow)
    except REBUFFED:
        target.did[f"{name}: no room"] += 1
        return
    try:
        await target.write(writer, request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            target.did[f"{name}: {head[9:12].decode()}"] += 1
            return
        if found := re.search(rb"content-length: (\d+)", head.lower()):
            length = int(found[1])
        while target.on() and got != length and not end.endswith(LAST):
            async with asyncio.timeout(60):
                part = await reader.read(SLOW_PIECE if slow else 2**16)
            if not part:
                target.says(f"{name}, honestly read, was cut after {got} bytes")
                return
            got, end = got + len(part), (end + part)[-len(LAST) :]
            target.did[f"{name}: bytes"] += len(part)
            if slow:
                await asyncio.sleep(SLOW_EVERY)
        target.did[f"{name}: to its end"] += target.on()
    except REBUFFED as error:
        if target.on() and got:
            target.says(f"{name}, honestly read, was cut after {got} bytes: {type(error).__name__}")
        else:
            target.did[f"{name}: not begun, {type(error).__name__}"] += 1
    finally:
        writer.transport.abort()


@attack(
    "half-head-crowd",
    f"{HEADS} connections without a key that hold {HEAD // 1000} kB of a head each, beside {HONEST} honest readers",
    keyed=True,
    seconds=50,
)
async def half_head_crowd(target: Target) -> None:
    line = b"x-filler: " + b"y" * 900 + b"\r\n"
    half = (b"GET /health HTTP/1.1\r\nHost: x\r\n" + line * (HEAD // len(line) + 1))[:HEAD]
    crowd = 0

    async def hold(number: int) -> None:
        nonlocal crowd
        await target.pause(number / HEADS * 4)
        while target.on():
            with target.rebuffed():
                async with target.connection() as (reader, writer):
                    await target.write(writer, half)
                    crowd += 1
                    target.did["most heads held"] = max(target.did["most heads held"], crowd)
                    try:
                        async with asyncio.timeout(target.left() + 0.1):
                            await reader.read(4096)
                    finally:
                        crowd -= 1
                target.did["closed by the server"] += 1
            await target.pause(1)

    async def reading(number: int) -> None:
        while target.on():
            if number % 2:
                await read_all(target, long_answer(target), "a long answer at 40 kB a second", slow=True)
            else:
                await read_all(target, target.post(CHAT, STEPS | {"stream": True}), "a stream")
            await target.pause(0.5)

    await asyncio.gather(*(hold(i) for i in range(HEADS)), *(reading(i) for i in range(HONEST)))


@attack(
    "full-house",
    f"{HOUSE} long streams of a key where {HOUSE} connections may be, strangers beside them; 20 a second",
    keyed=True,
    seconds=30,
    server_args=("--max-connections", str(HOUSE)),
    full=True,
)
async def full_house(target: Target) -> None:
    rng = random.Random(0)

    async def streaming() -> None:
        while target.on():
            await read_all(target, target.post(CHAT, STORY | {"stream": True}), "a stream")
            await target.pause(0.1)

    async def stranger() -> None:
        """Sends a request that needs a key, and keeps the connection open."""
        requests = [
            target.head("GET", "/v1/models", key=False),
            target.head("POST", CHAT, "Content-Length: 100000", key=False),
            b"GET /v1/models HTTP/1.1\r\nX-Slow: ",
            b"",
        ]
        with target.rebuffed():
            async with target.connection() as (reader, writer):
                writer.write(rng.choice(requests))
                async with asyncio.timeout(5):
                    received = await reader.read(4096)
                target.did[f"stranger {received[9:12].decode(errors='replace') or 'closed'}"] += 1

    async def strangers() -> None:
        async with asyncio.TaskGroup() as running:
            while target.on():
                running.create_task(stranger())
                await target.pause(0.05)

    async def probing() -> None:
        """Sends probes on new connections. The prober does the same in its own process, and measures."""
        while target.on():
            found = "nothing"
            try:
                async with asyncio.timeout(10), target.connection() as (reader, writer):
                    writer.write(target.head("GET", "/health", "Connection: close", key=False))
                    found = (await reader.readuntil(b"\r\n\r\n"))[9:12].decode()
            except REBUFFED as error:
                found = f"{type(error).__name__} {error}".strip()
            target.did[f"probe {found}"] += 1
            if found != "200":
                target.says(f"a probe of a full server got {found}")
            await target.pause(PROBES_EVERY)

    await asyncio.gather(*(streaming() for _ in range(HOUSE)), strangers(), probing())
