"""Tests of clients that disconnect or read slowly: requests are aborted, pages are freed, and others are served."""

import json
import socket

import pytest

from tests.server.harness import ServerProcess

LONG_ANSWER: dict[str, object] = {"ignore_eos": True, "decoding": {"accept_threshold": 1.0}}
LONG: dict[str, object] = {"prompt": "long", "max_tokens": 480, **LONG_ANSWER}


def connect(server: ServerProcess, route: str, body: dict[str, object]) -> socket.socket:
    data = json.dumps(body).encode()
    head = f"POST {route} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    return server.connect(head.encode() + data)


LONG_CHAT = {"messages": [{"role": "user", "content": "long"}], "max_tokens": 400, **LONG_ANSWER}
ROUTES: dict[str, dict[str, object]] = {
    "/generate": LONG, "/v1/chat/completions": LONG_CHAT, "/v1/messages": LONG_CHAT,
    "/v1/responses": {"input": "long", "max_output_tokens": 400, **LONG_ANSWER},
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
def test_a_disconnect_frees_the_pages_of_the_request(server: ServerProcess, route: str, stream: bool) -> None:
    server.until_idle()
    before = server.metrics()
    count = 12
    clients = [connect(server, route, {**ROUTES[route], "stream": stream}) for _ in range(count)]
    server.until(lambda: server.metrics()["unmask_requests_running"] == count)
    server.until(lambda: server.metrics()["unmask_kv_pages_used"] > 0)
    for client in clients:
        client.close()
    server.until_idle()
    aborted = 'unmask_requests_total{outcome="aborted"}'
    server.until_metric(aborted, before.get(aborted, 0) + count)
    # far from complete: each client requests at least 400 tokens, at one token per step
    generated = "unmask_generated_tokens_total"
    assert server.metrics()[generated] - before[generated] < count * 400


def test_a_client_that_disconnects_before_its_body_is_complete_affects_no_other(server: ServerProcess) -> None:
    server.connect(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{").close()
    with server.client() as client:
        assert client.post("/generate", json={"prompt": "x", "max_tokens": 2}).status_code == 200


def test_a_slow_reader_gets_everything_and_holds_no_page(server: ServerProcess) -> None:
    body = {**LONG, "stream": True, "decoding": {"accept_threshold": 0.5}}
    before = server.metrics()["unmask_generated_tokens_total"]
    slow = [connect(server, "/generate", body) for _ in range(3)]
    with server.client() as client:
        assert client.post("/generate", json={"prompt": "x", "max_tokens": 2}).status_code == 200
    server.until(lambda: server.metrics()["unmask_generated_tokens_total"] >= before + 3 * 480)
    server.until_idle()
    answers = []
    for connection in slow:
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            chunk = connection.recv(512)
            assert chunk
            data += chunk
        connection.close()
        final = next(line for line in data.split(b"\n") if b'"event":"final"' in line)
        answers.append(json.loads(final.removeprefix(b"data: "))["token_ids"])
    assert len(answers[0]) == 480
    assert answers[0] == answers[1] == answers[2]
