"""Tests that requests, answers and their order do not depend on how the bytes are split into segments."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.on_loop import on_loop
from tests.server.test_attacks import answers
from tests.server.wire import exchange

UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
INNER = b"GET /inner HTTP/1.1\r\nHost: localhost\r\n\r\n"


def message(method: str, body: bytes, upgrade: bool, chunk: int, trailer: bool) -> bytes:
    """Returns a request. `chunk`: size of the chunks of its body; 0: the body has a Content-Length."""
    head = f"{method} /{len(body)}?q=1 HTTP/1.1\r\nHost: localhost\r\n".encode() + (UPGRADE if upgrade else b"")
    if method == "GET":
        return head + b"\r\n"
    if not chunk:
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    pieces = [body[i : i + chunk] for i in range(0, len(body), chunk)]
    chunked = b"".join(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    end = b"Checksum: 5\r\n\r\n" if trailer else b"\r\n"
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked + b"0\r\n" + end


REQUESTS = st.tuples(
    st.sampled_from(["GET", "POST"]), st.sampled_from([b"", b"x", INNER, INNER * 40, b"\r\n\r\n" * 5]), st.booleans(),
    st.sampled_from([0, 1, 7, 500]), st.booleans(),
)  # fmt: skip


def responses_in(data: bytes) -> list[tuple[str, str, str]]:
    found = [(status, json.loads(body)) for status, _, body in answers(data)]
    assert all(status == 200 for status, _ in found)
    return [(body["method"], body["path"], body["body"]) for _, body in found]


@examples(300)
@given(st.lists(REQUESTS, min_size=1, max_size=14), st.data())
def test_any_cut_of_any_requests_gives_the_same_answers(
    requests: list[tuple[str, bytes, bool, int, bool]], data: st.DataObject
) -> None:
    stream = b"".join(message(*request) for request in requests)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    segments = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    sent, _ = asyncio.run(exchange(segments, data.draw(st.integers(0, 3))))
    bodies = [b"" if method == "GET" else body for method, body, *_ in requests]
    expected = [(r[0], f"/{len(r[1])}", body.decode()) for r, body in zip(requests, bodies, strict=True)]
    assert responses_in(sent) == expected


@pytest.mark.parametrize("chunk", [0, 7])
@pytest.mark.parametrize("upgrade", [False, True])
@on_loop
async def test_every_single_cut_gives_the_same_answers(upgrade: bool, chunk: int) -> None:
    stream = message("POST", INNER, upgrade, chunk, True) + message("GET", b"", upgrade, 0, False)
    complete, _ = await exchange([stream])
    assert [path for _, path, _ in responses_in(complete)] == [f"/{len(INNER)}", "/0"]
    assert responses_in(complete)[0][2] == INNER.decode()
    for i in range(1, len(stream)):
        assert (await exchange([stream[:i], stream[i:]]))[0] == complete
    assert (await exchange([stream[i : i + 1] for i in range(len(stream))]))[0] == complete


@pytest.mark.parametrize("size", range(505, 520))
def test_a_head_that_ends_where_a_piece_ends_is_parsed(size: int) -> None:
    """The parser receives its input in pieces, and must treat them as one stream."""
    overhead = len(b"GET /0 HTTP/1.1\r\na: \r\n\r\n")
    head = b"GET /0 HTTP/1.1\r\na: " + b"x" * (size - overhead) + b"\r\n\r\n"
    assert len(head) == size
    sent, _ = asyncio.run(exchange([head * 3]))
    assert len(responses_in(sent)) == 3
    assert b"connection: close" not in sent


def test_pipelined_requests_start_one_by_one() -> None:
    sent, started = asyncio.run(exchange([b"GET / HTTP/1.1\r\n\r\n" * 2000]))
    assert len(responses_in(sent)) == 2000
    assert started == 1


def test_a_broken_request_is_refused_after_the_answers_before_it() -> None:
    for rest, status in (
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET /" + b"x" * 70_000, 431),
        (b"CONNECT a:1 HTTP/1.1\r\n\r\n", 405),
    ):
        sent, _ = asyncio.run(exchange([INNER * 3 + rest + INNER]))
        found = answers(sent)
        assert [one[0] for one in found] == [200, 200, 200, status]
        assert [b"connection" in one[1] for one in found] == [False, False, False, True]


def test_a_malformed_body_fails_only_its_own_request() -> None:
    broken = b"POST /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n"
    for before in (0, 1, 3):
        for patience in (0, 5):
            sent, _ = asyncio.run(exchange([INNER * before + broken[:-6], broken[-6:] + INNER], patience))
            assert [one[0] for one in answers(sent)] == [200] * before + [400]


def test_chunks_of_a_body_and_blank_lines_in_it_are_limited() -> None:
    """Parsing stops at each blank line, because the body could end there."""
    head = b"POST /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = [(b"1\r\na\r\n" * count, status) for count, status in ((99, 200), (100, 400))]  # one more is the last
    for count, status in ((98, 200), (100, 400)):  # the chunks themselves have two more
        chunks.append((b"%x\r\n%b\r\n" % (4 * count, b"\r\n\r\n" * count), status))
    for data, status in chunks:
        sent, _ = asyncio.run(exchange([head + data + b"0\r\n\r\n"], chunks=100))
        assert [one[0] for one in answers(sent)] == [status]


@pytest.mark.parametrize(
    "data",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\nConnection: Upgrade\nUpgrade: h2c\r\n\r\n",
        b"POST / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade : h2c\r\nContent-Length: 3\r\n\r\nabc",
        b"GET / HTTP/1.1\r\nA: b\r\n\nGET / HTTP/1.1\r\n\r\n", b"GET /a b HTTP/1.1\r\nhalf", b"GET / HTTP/3.1\r\nhalf",
    ],
)  # fmt: skip
def test_other_protocols_and_line_ends_are_refused(data: bytes) -> None:
    sent, _ = asyncio.run(exchange([data + INNER]))
    assert [one[0] for one in answers(sent)] == [400]


def test_empty_lines_before_a_request_are_ignored() -> None:
    sent, _ = asyncio.run(exchange([b"\r\n", INNER + b"\r\n" * 3, b"\r\n" * 5, INNER]))
    assert len(responses_in(sent)) == 2


def test_data_after_a_last_request_is_ignored() -> None:
    for first in (
        b"GET /1 HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"GET /1 HTTP/1.0\r\n\r\n",
        b"GET /1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        b"POST /1 HTTP/1.1\r\nConnection: close, Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc",
    ):
        sent, _ = asyncio.run(exchange([first + INNER + b"NONSENSE"]))
        (found,) = answers(sent)
        assert found[0] == 200
        assert found[1][b"connection"] == b"close"


def test_trailers_do_not_become_headers() -> None:
    """The key is checked before a trailer arrives, so a trailer must not change the headers."""
    stream = message("POST", b"abc", False, 2, True)
    sent, _ = asyncio.run(exchange([stream]))
    assert responses_in(sent) == [("POST", "/3", "abc")]


def test_framings_that_contradict_each_other_are_refused_with_an_upgrade_too() -> None:
    for framing in (
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip\r\n",
        b"Content-Length: 3\r\nContent-Length: 4\r\n",
        b"Content-Length: 3, 3\r\n",
        b"Content-Length: +3\r\n",
        b"Content-Length: 99999999999999999999\r\n",
    ):
        for upgrade in (b"", UPGRADE):
            sent, _ = asyncio.run(exchange([b"POST / HTTP/1.1\r\n" + upgrade + framing + b"\r\nabc" + INNER]))
            assert [one[0] for one in answers(sent)] == [400], (framing, upgrade)
