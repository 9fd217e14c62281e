"""Tests that answers of pods are bounded, and that pods of one service do not delay those of another."""

import asyncio
import contextlib
from collections import Counter
from typing import Any

import pytest

from tests.wait import TIMEOUT
from unmask_operator.pod_http import LARGEST_BODY, MAX_CHUNKS, PodRequestError, PodSlots, get_text, pod_session


def get(answer: bytes, timeout: float = TIMEOUT, then: str = "close") -> str:
    """Returns what is read from a pod that sends `answer`. `then` it closes the connection, waits, or repeats it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # the connection was closed
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            while then == "repeat":
                writer.write(answer[-4096:])
                await writer.drain()
            if then == "wait":
                await reader.read()
        writer.close()

    async def go() -> str:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, pod_session() as session:
            text = await get_text(session, "127.0.0.1", "/metrics", server.sockets[0].getsockname()[1], timeout)
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
        *((response(b"x", f"Content-Encoding: {coding}"), "/metrics answered with a Content-Encoding")
          for coding in ("br", "GZIP", "gzip, gzip")),
        (b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "/metrics answered 301"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "/metrics answered 204"),
        (b"", "/metrics: "),
    ],
)  # fmt: skip
def test_any_other_answer_is_an_error(answer: bytes, error: str) -> None:
    with pytest.raises(PodRequestError, match=error):
        get(answer)


def test_reading_a_body_without_end_stops_at_the_limit() -> None:
    with pytest.raises(PodRequestError, match="larger than"):
        get(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 4096, then="repeat")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"])
def test_an_answer_that_never_ends_fails_at_the_limit(answer: bytes) -> None:
    with pytest.raises(PodRequestError, match=r"took longer than 0\.05 s"):
        get(answer, 0.05, then="wait")


def test_slots_are_limited_per_service_and_in_all() -> None:
    """Each holder waits until no other holder can enter."""
    slots, held, peaks = PodSlots(total=5, per_service=3), Counter[str](), Counter[str]()

    async def hold(service: str, limit: Any, full: asyncio.Event) -> None:
        async with limit:
            held[service] += 1
            peaks[service] = max(peaks[service], held[service])
            peaks["both"] = max(peaks["both"], held.total())
            if held.total() == 5:
                full.set()
            await full.wait()
            held[service] -= 1

    async def go() -> None:
        limits, full = {"a": slots.of_service(), "b": slots.of_service()}, asyncio.Event()
        await asyncio.gather(*(hold(service, limit, full) for service, limit in limits.items() for _ in range(9)))

    asyncio.run(go())
    assert (peaks["a"], peaks["both"]) == (3, 5)
    assert 2 <= peaks["b"] <= 3


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
