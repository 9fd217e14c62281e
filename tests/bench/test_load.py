"""Tests of the load generator against a small real server on loopback, and of the arithmetic of its report."""

import argparse
import asyncio
import json
import socket
import threading
from contextlib import asynccontextmanager, contextmanager

import pytest
from aiohttp import web

from runtime.bench import serve
from runtime.bench.load import Round, Sent, Stream, closed_loop, open_loop, percentiles, send, session
from runtime.bench.multiprocess_load import load_processes
from runtime.bench.plot import Curve
from runtime.client import ServerError
from tests.wait import TIMEOUT

BODY = json.dumps({"messages": [{"role": "user", "content": "x"}]}).encode()


def event(delta, **more):
    return f"data: {json.dumps({'choices': [{'delta': delta}] if delta is not None else [], **more})}\n\n".encode()


class Server:
    """Streams a role and a word, then usage. It counts concurrent requests, and requests per connection.

    Args:
        seconds: Pause before and after the word.
        fail: The kind of failure of the n-th request.
        together: Each answer starts only when so many requests have arrived for it.
    """

    def __init__(self, seconds=0.0, fail=None, together=1):
        self.seconds, self.fail = seconds, fail or {}
        self.arrived = asyncio.Barrier(together)
        self.bodies, self.headers = [], []
        self.connections = {}  # the client's port -> requests on it
        self.now = self.max_in_flight = self.asked = self.scraped = 0

    async def answer(self, request):
        trouble = self.fail.get(len(self.bodies))
        self.bodies.append(await request.json())
        self.headers.append(request.headers)
        port = request.transport.get_extra_info("peername")[1]
        self.connections[port] = self.connections.get(port, 0) + 1
        if trouble == "busy":
            return web.json_response({"error": {"message": "full"}}, status=429)
        if trouble == "hang up":
            request.transport.abort()
            return web.Response()
        self.now += 1
        self.max_in_flight = max(self.max_in_flight, self.now)
        try:
            return await self.stream(request, trouble)
        finally:
            self.now -= 1

    async def health(self, request):
        self.asked += 1
        return web.Response()

    async def metrics(self, request):
        self.scraped += 1
        lines = (f'process_cpu_seconds_total{{process="frontend-{n}"}} {self.scraped / 4}' for n in range(2))
        return web.Response(text="\n".join(('process_cpu_seconds_total{process="backend-0"} 99', *lines)))

    async def stream(self, request, trouble):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(event({"role": "assistant", "content": ""}, usage=None))
        await self.arrived.wait()
        if trouble == "endless":
            await asyncio.Event().wait()
        await asyncio.sleep(self.seconds)
        await response.write(event({"content": "a"}, usage=None))
        await asyncio.sleep(self.seconds)
        if trouble == "cut":  # in the middle of the body
            request.transport.abort()
        elif trouble == "error event":
            await response.write(b'data: {"error": {"message": "died"}}\n\ndata: [DONE]\n\n')
        elif trouble == "nonsense":
            await response.write(b'data: {"usage"\n\n')
        elif trouble != "no end":
            await response.write(event(None, usage={"completion_tokens": 3}) + b"data: [DONE]\n\n")
        return response

    @asynccontextmanager
    async def running(self):
        """Runs the server and yields its URL."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.answer)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def against(server, run, timeout=TIMEOUT, api_key=None):
    async def go():
        async with server.running() as url, session(url, api_key, timeout) as http:
            return await run(http)

    return asyncio.run(go())


def test_one_request_is_timed():
    server = Server(0.05)
    sent = against(server, lambda http: send(http, BODY), api_key="k")
    assert sent.failure is None
    assert sent.tokens == 3
    assert 0.04 < sent.first < sent.latency
    assert sent.latency > 0.09
    assert server.bodies == [json.loads(BODY)]
    assert server.headers[0]["Authorization"] == "Bearer k"


@pytest.mark.parametrize("clients", [1, 4])
def test_closed_loop_keeps_its_number_of_requests_in_flight(clients, monkeypatch):
    monkeypatch.setattr("runtime.bench.load.IDLE_SECONDS", TIMEOUT)
    server, ticks = Server(together=clients), []
    result = against(server, lambda http: closed_loop(http, [BODY] * 12, clients, lambda: ticks.append(1)))
    assert server.max_in_flight == clients
    assert len(result.good) == len(ticks) == 12
    # Each client keeps one connection and gets the same number of answers.
    assert list(server.connections.values()) == [12 // clients] * clients


def test_open_loop_does_not_wait_for_answers():
    server = Server(together=20)
    result = against(server, lambda http: open_loop(http, [BODY] * 20, 200.0, 1, lambda: None))
    assert server.max_in_flight == len(result.good) == 20


def test_failures_are_counted_by_kind():
    trouble = dict(enumerate(["busy", "hang up", "error event", "cut", "no end", "nonsense", "busy"], 1))
    bodies = [BODY] * 9
    result = against(Server(fail=trouble), lambda http: closed_loop(http, bodies, 1, lambda: None))
    summary = result.summary()
    assert summary["failures"] == {
        "429": 2, "ServerDisconnectedError": 1, "error event": 1, "broken stream": 3,
    }  # fmt: skip
    assert (summary["requests"], summary["ok"]) == (9, 2)


def test_an_endless_answer_and_a_closed_port_are_failures():
    sent = against(Server(fail={0: "endless"}), lambda http: send(http, BODY), timeout=0.2)
    assert (sent.failure, sent.latency >= 0.2) == ("timeout", True)

    async def go(port):
        async with session(f"http://127.0.0.1:{port}", None, TIMEOUT) as http:
            return await send(http, BODY)

    with socket.socket() as bound:  # its port is reserved, and nothing listens on it
        bound.bind(("127.0.0.1", 0))
        assert asyncio.run(go(bound.getsockname()[1])).failure == "ClientConnectorError"


def test_a_stream_may_come_in_any_pieces():
    text = 'says "usage" and "error"'
    events = b": comment\n\n" + event({"content": ""}, usage=None) + event({"content": text}, usage=None)
    events += event({"content": text}, usage=None) + event(None, usage={"completion_tokens": 7})
    events += b"data: [DONE]\r\n\r\n"
    for size in (1, 2, 7, 50, len(events)):
        stream = Stream()
        for at in range(0, len(events), size):
            stream.feed(events[at : at + size])
        assert (stream.has_text, stream.tokens, stream.ended) == (True, 7, True)
    with pytest.raises(ServerError, match="died"):  # an error after the first text
        stream.feed(b'data: {"error": {"message": "died"}}\n\n')


def test_summary():
    sent = [Sent(first=i / 10, latency=i, tokens=2) for i in range(1, 11)] + [Sent(failure="timeout", latency=99)]
    summary = Round(4.0, sent).summary()
    assert summary["requests_per_second"] == 2.5
    assert summary["tokens_per_second"] == 5.0
    assert summary["latency"] == {"p50": 5, "p90": 9, "p99": 10}
    assert summary["ttft"]["p50"] == 0.5
    assert percentiles([]) == {"p50": None, "p90": None, "p99": None}
    assert percentiles([3.0]) == {"p50": 3.0, "p90": 3.0, "p99": 3.0}


def arguments(*argv) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return parser.parse_args(argv)


def test_prompts_are_the_seeds_and_no_cache_helps():
    args = arguments("--requests", "300", "--mode", "speed")
    assert serve.bodies(args, 0) == serve.bodies(args, 0)
    both = serve.bodies(args, 0) + serve.bodies(args, 1)
    assert len({body["cache_salt"] for body in both}) == 600
    assert {(body["max_tokens"], body["decoding"]["mode"], body["messages"][-1]["role"]) for body in both} == {
        (64, "speed", "user")
    }


@contextmanager
def other_server(server):
    """Runs the server in a thread with its own event loop, and yields its URL."""
    loop, ready, end = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    found = []

    async def go():
        async with server.running() as url:
            found.append(url)
            ready.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(go(),))
    thread.start()
    try:
        assert ready.wait(TIMEOUT)
        yield found[0]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()


def test_a_running_server_is_loaded_and_reported(tmp_path, capsys):
    server, out = Server(fail={7: "busy"}), tmp_path / "out.json"
    line = "--model m --clients 1 3 --rate 500 --requests 5 --at-once --accept-threshold 0"
    with other_server(server) as url:
        assert serve.main(arguments("--url", url + "/", *line.split(), "--json", str(out))) == 1  # a request failed
    report = json.loads(out.read_text())
    assert [next(iter(load)) for load in report["loads"]] == ["clients", "clients", "rate"]
    assert sum(load["rounds"][0]["ok"] for load in report["loads"]) == 14
    assert {load["rounds"][0]["frontend_ms_per_request"] for load in report["loads"]} == {500 / 5}
    assert "api_key" not in report["settings"]
    assert server.bodies[-1]["stream_options"] == {"include_usage": True}
    assert {(body["model"], body["decoding"]["accept_threshold"]) for body in server.bodies} == {("m", 0.0)}
    assert server.asked == 2 * 5
    assert report["at_once"].keys() == {"1", "3"}
    shown = capsys.readouterr().out
    assert "1 x 429" in shown
    assert "3 clients against 1:" in shown
    assert "3 clients at /health: " in shown


@pytest.mark.slow
def test_a_shape_is_served_with_drawn_weights(tmp_path):
    out = tmp_path / "out.json"
    argv = ["--arch", "llada2-tiny", "--random-weights", "--clients", "2", "--requests", "4", "--ignore-eos"]
    assert serve.main(arguments(*argv, "--server-args=--device cpu", "--json", str(out))) == 0
    assert json.loads(out.read_text())["loads"][0]["rounds"][0]["ok"] == 4


@pytest.mark.parametrize(("loop", "load"), [("open_loop", (200.0, 3)), ("closed_loop", (3,))])
def test_clients_in_several_processes_are_counted_together(loop, load):
    server = Server(0.05)

    async def go():
        async with server.running() as url:
            with load_processes(2, url, None, TIMEOUT) as several:
                return await getattr(several, loop)([BODY] * 9, *load)

    found = asyncio.run(go())
    assert (len(found.sent), len(found.good), len(server.bodies)) == (9, 9, 9)
    if loop == "closed_loop":
        assert found.seconds > 0.29  # each client sends three of them, which take 0.1 s each


def test_curves_of_loads_omit_missing_measurements():
    def load(kind, value, speed, p50):
        latency = {"p50": p50, "p90": None if p50 is None else 2 * p50}
        return {kind: value, "rounds": [{"tokens_per_second": speed, "latency": latency}] * 2}

    loads = [load("clients", 1, 100, 0.01), load("clients", 8, 400, 0.02), load("rate", 5, 50, None)]
    assert serve._curves(loads) == [
        Curve("p50 by clients", [(100, 10.0), (400, 20.0)], ["1", "8"]),
        Curve("p90 by clients", [(100, 20.0), (400, 40.0)], ["1", "8"]),
    ]
