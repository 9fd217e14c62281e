"""Tests that answers of pods are bounded, and that pods of one service do not delay those of another."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tests.wait import TIMEOUT
from unmask_operator.pod_http import (
    LARGEST_BODY,
    MAX_CHUNKS,
    PodRequestError,
    PodSlots,
    get_text,
    pod_session,
)

Session = Callable[[], aiohttp.ClientSession]
SESSIONS = pytest.mark.parametrize("session", [pod_session, aiohttp.ClientSession])


@asynccontextmanager
async def raw_pod(answer: bytes, hold: bool = False) -> AsyncIterator[tuple[int, list[int]]]:
    """Starts a server that sends `answer` for any request.

    Yields its port and a list of the number of bytes sent per connection, filled when a connection ends. With `hold`,
    connections stay open.
    """
    taken: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = 0
        try:
            await reader.readuntil(b"\r\n\r\n")
            for start in range(0, len(answer), 4096):
                writer.write(answer[start : start + 4096])
                await writer.drain()
                sent = start
            if hold:
                await reader.read()
        except OSError:
            pass
        finally:
            taken.append(sent)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], taken


def get(answer: bytes, session: Session = pod_session, timeout: float = TIMEOUT, hold: bool = False) -> str:
    async def go() -> str:
        async with raw_pod(answer, hold) as (port, _), session() as opened:
            return await get_text(opened, "127.0.0.1", "/metrics", port, timeout)

    return asyncio.run(go())


def response(body: bytes, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(*chunks: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


@SESSIONS
def test_a_body_of_the_largest_size_is_read_and_one_byte_more_is_not(session: Session) -> None:
    assert len(get(response(b"x" * LARGEST_BODY), session)) == LARGEST_BODY
    with pytest.raises(PodRequestError, match="/metrics is larger than 256 KiB"):
        get(response(b"x" * (LARGEST_BODY + 1)), session)


@pytest.mark.parametrize("kind", ["length", "chunked", "until the end"])
def test_reading_a_body_of_64_mib_stops_early(kind: str) -> None:
    body = b"x" * (64 << 20)
    answer = {
        "length": response(body),
        "chunked": chunked(body),
        "until the end": b"HTTP/1.0 200 OK\r\n\r\n" + body,
    }[kind]

    async def go() -> list[int]:
        async with raw_pod(answer) as (port, taken), pod_session() as session:
            with pytest.raises(PodRequestError, match="larger than"):
                await get_text(session, "127.0.0.1", "/metrics", port, TIMEOUT)
            while not taken:
                await asyncio.sleep(0.01)
        return taken

    (taken,) = asyncio.run(go())
    assert taken < 32 << 20  # as much as socket buffers contain, far less than the body


@SESSIONS
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "GZIP", "gzip, gzip"])
def test_a_compressed_body_is_refused_unread(session: Session, coding: str) -> None:
    with pytest.raises(PodRequestError, match="/metrics answered with a Content-Encoding"):
        get(response(gzip.compress(b"x"), f"Content-Encoding: {coding}"), session)


@SESSIONS
def test_chunks_are_joined_and_their_number_is_bounded(session: Session) -> None:
    assert get(chunked(b"ab", b"c"), session) == "abc"
    with pytest.raises(PodRequestError, match=f"/metrics has more than {MAX_CHUNKS} chunks"):
        get(chunked(*[b"x"] * (2 * MAX_CHUNKS)), session)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no HTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1_000_000,
        b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ],
)
def test_any_other_answer_of_a_pod_is_an_error(answer: bytes) -> None:
    with pytest.raises(PodRequestError, match="/metrics"):
        get(answer)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"])
def test_an_answer_that_never_ends_fails_at_the_limit(answer: bytes) -> None:
    with pytest.raises(PodRequestError, match="took longer than"):
        get(answer, timeout=0.05, hold=True)


def test_a_pod_sets_no_cookie() -> None:
    async def go() -> int:
        async with raw_pod(response(b"", "Set-Cookie: a=b")) as (port, _), pod_session() as session:
            await get_text(session, "127.0.0.1", "/metrics", port, TIMEOUT)
            return len(session.cookie_jar)

    assert asyncio.run(go()) == 0


def test_slots_are_limited_per_service_and_in_all() -> None:
    """Checks the limits while each holder waits until no other holder can enter."""

    async def go() -> dict[str, int]:
        slots, held, peak = PodSlots(total=5, per_service=3), {"a": 0, "b": 0}, {"a": 0, "b": 0, "both": 0}
        full = asyncio.Event()

        async def hold(service: str, limit: object) -> None:
            async with limit:  # type: ignore[attr-defined]
                held[service] += 1
                peak[service] = max(peak[service], held[service])
                peak["both"] = max(peak["both"], sum(held.values()))
                if sum(held.values()) == 5:
                    full.set()
                await full.wait()
                held[service] -= 1

        one, other = slots.of_service(), slots.of_service()
        await asyncio.gather(*(hold("a", one) for _ in range(9)), *(hold("b", other) for _ in range(9)))
        return peak

    peak = asyncio.run(go())
    assert (peak["a"], peak["both"]) == (3, 5)
    assert 2 <= peak["b"] <= 3


def test_a_cancelled_wait_for_a_slot_occupies_none() -> None:
    async def go() -> None:
        slots = PodSlots(total=1, per_service=1)
        one, other = slots.of_service(), slots.of_service()
        async with one:
            waiting = asyncio.create_task(other.__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait((waiting,))
        async with asyncio.timeout(TIMEOUT), other:
            pass

    asyncio.run(go())
