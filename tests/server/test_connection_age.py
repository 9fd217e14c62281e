"""Tests of --max-connection-age-seconds: clients open new connections, which may go elsewhere, and lose no answer."""

import json
from pathlib import Path

import pytest

from tests.server.harness import FAKE, serving
from tests.server.test_slow_clients import GET, ended, receive
from tests.server.wire import wired
from tests.wait import wait_until

SLOW = GET.replace(b"/x", b"/slow")
POST = b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"


def closes(answer: bytes) -> bool:
    """Checks that an answer is complete. Returns whether it closes the connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"content-length: %d" % len(body) in head
    return b"connection: close" in head


@pytest.mark.parametrize("request_", [GET, POST])
def test_an_answer_closes_a_connection_that_is_too_old(request_: bytes) -> None:
    with wired(age_seconds=100) as server, server.connect(request_) as old:
        assert not closes(receive(old))
        for seconds, expired in ((60, False), (39, False), (1, True)):
            server.pass_time(seconds)
            old.sendall(request_)
            assert closes(receive(old)) == expired
        ended(old)
        with server.connect(request_) as new:
            assert not closes(receive(new))


def test_a_request_that_arrived_in_time_keeps_its_connection() -> None:
    with wired(age_seconds=100) as server, server.connect(SLOW) as connection:
        wait_until(lambda: server.begun == 1)
        server.pass_time(200)
        server.answer_slow()
        assert not closes(receive(connection))
        connection.sendall(GET)
        assert closes(receive(connection))
        ended(connection)


def test_an_idle_connection_stays_open() -> None:
    with wired(age_seconds=10) as server, server.connect(GET) as connection:
        receive(connection)
        server.pass_time(50)
        assert server.open == 1


def test_without_the_flag_connections_have_no_limit() -> None:
    with wired() as server, server.connect(GET) as connection:
        for _ in range(20):
            assert not closes(receive(connection))
            server.pass_time(70)
            connection.sendall(GET)
        assert not closes(receive(connection))


@pytest.mark.parametrize("processes", ["1", "2"])
def test_clients_of_a_server_with_the_flag_reconnect(checkpoint: Path, processes: str) -> None:
    flags = ("--max-connection-age-seconds", "1e-9", "--frontend-processes", processes)
    with serving("--model", str(checkpoint), *flags, module=FAKE) as server, server.client() as client:
        body = {"prompt": "hello", "max_tokens": 4}
        for stream in (False, True, False):
            answer = client.post("/v1/completions", json={**body, "stream": stream})
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")
            assert answer.text.endswith("data: [DONE]\n\n") if stream else json.loads(answer.text)["choices"]
