"""Tests that answers of pods are bounded."""

import asyncio
import contextlib

import pytest

from tests.wait import TIMEOUT
from unmask_operator.pod_http import LARGEST_BODY, MAX_CHUNKS, PodRequestError, get_text, pod_session


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
