"""Tests that answers of pods are bounded, and that pods of one service do not delay those of another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.wait import TIMEOUT
from unmask_operator.pod_http import LARGEST_BODY, MAX_CHUNKS, PodRequestError, PodSlots, get_text, pod_session


@asynccontextmanager
async def raw_pod(answer: bytes, hold: bool = False) -> AsyncIterator[tuple[int, asyncio.Future[int]]]:
    """Starts a server that sends `answer` for any request. With `hold`, connections stay open.

    Yields its port, and the number of bytes sent on the first connection once that has ended.
    """
    taken: asyncio.Future[int] = asyncio.get_running_loop().create_future()

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
            taken.set_result(sent)
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], taken


def get(answer: bytes, timeout: float = TIMEOUT, hold: bool = False) -> str:
    async def go() -> str:
        async with raw_pod(answer, hold) as (port, _), pod_session() as session:
            text = await get_text(session, "127.0.0.1", "/metrics", port, timeout)
            assert len(session.cookie_jar) == 0
            return text

    return asyncio.run(go())


def response(body: bytes, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(*chunks: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (response(b"x" * LARGEST_BODY), "x" * LARGEST_BODY),
        (chunked(b"ab", b"c"), "abc"),
        (chunked(*[b"x"] * MAX_CHUNKS), "x" * MAX_CHUNKS),
        (response(b"a\xff", "Content-Encoding: identity", "Set-Cookie: a=b"), "a\ufffd"),
    ],
)
def test_an_answer_within_the_limits_is_read(answer: bytes, text: str) -> None:
    assert get(answer) == text


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (response(b"x" * (LARGEST_BODY + 1)), "/metrics is larger than 256 KiB"),
        (chunked(*[b"x"] * (MAX_CHUNKS + 1)), f"/metrics has more than {MAX_CHUNKS} chunks"),
        *(
            (response(b"x", f"Content-Encoding: {coding}"), "/metrics answered with a Content-Encoding")
            for coding in ("br", "GZIP", "gzip, gzip")
        ),
        (b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "/metrics answered 301"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "/metrics answered 204"),
        (b"", "/metrics: "),
        (b"no HTTP\r\n\r\n", "/metrics: "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "/metrics: "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", "/metrics: "),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000, "/metrics: "),
    ],
)
def test_any_other_answer_is_an_error(answer: bytes, error: str) -> None:
    with pytest.raises(PodRequestError, match=error):
        get(answer)


def test_reading_a_large_body_stops_early() -> None:
    async def go() -> int:
        async with raw_pod(chunked(b"x" * (64 << 20))) as (port, taken), pod_session() as session:
            with pytest.raises(PodRequestError, match="larger than"):
                await get_text(session, "127.0.0.1", "/metrics", port, TIMEOUT)
            return await taken

    assert asyncio.run(go()) < 32 << 20  # as much as socket buffers contain, far less than the body


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"])
def test_an_answer_that_never_ends_fails_at_the_limit(answer: bytes) -> None:
    with pytest.raises(PodRequestError, match=r"took longer than 0\.05 s"):
        get(answer, timeout=0.05, hold=True)


def test_slots_are_limited_per_service_and_in_all() -> None:
    """Each holder waits until no other holder can enter."""

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
