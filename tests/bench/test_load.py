"""The load generator against a server in this process, and the arithmetic of its report."""

import argparse
import asyncio
import json
import time

import httpx
import pytest

from runtime.bench import serve
from runtime.bench.load import Round, Sent, closed_loop, open_loop, percentiles, send

BODY = {"messages": [{"role": "user", "content": "x"}]}


class Server:
    """Streams three words, counts those at work at once; `fail` gives the n-th request's misfortune."""

    def __init__(self, seconds=0.02, fail=None):
        self.seconds, self.fail = seconds, fail or {}
        self.count = self.now = self.most = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        number, self.count = self.count, self.count + 1
        self.now += 1
        self.most = max(self.most, self.now)
        trouble = self.fail.get(number)
        if trouble == "busy":
            self.now -= 1
            return httpx.Response(429, json={"error": {"message": "full"}})
        if trouble == "connection":
            self.now -= 1
            raise httpx.ConnectError("no")
        return httpx.Response(200, content=self.stream(trouble))

    async def stream(self, trouble):
        def line(delta, **more):
            return (
                f"data: {json.dumps({'choices': [{'delta': delta}] if delta is not None else [], **more})}\n\n".encode()
            )

        yield line({"role": "assistant", "content": ""})
        await asyncio.sleep(self.seconds)
        yield line({"content": "a"})
        await asyncio.sleep(self.seconds)
        if trouble == "error event":
            yield b'data: {"error": {"message": "died"}}\n\ndata: [DONE]\n\n'
        elif trouble != "broken":
            yield line(None, usage={"completion_tokens": 3}) + b"data: [DONE]\n\n"
        self.now -= 1


def against(server, run):
    async def go():
        async with httpx.AsyncClient(transport=httpx.MockTransport(server), base_url="http://x") as http:
            return await run(http)

    return asyncio.run(go())


def test_one_request_is_timed():
    sent = against(Server(0.05), lambda http: send(http, BODY))
    assert sent.failure is None
    assert sent.tokens == 3
    assert 0.04 < sent.first < sent.latency
    assert sent.latency > 0.09


@pytest.mark.parametrize("clients", [1, 4])
def test_closed_loop_keeps_so_many_at_work(clients):
    server, ticks = Server(), []
    result = against(server, lambda http: closed_loop(http, [BODY] * 12, clients, lambda: ticks.append(1)))
    assert server.most == clients
    assert len(result.sent) == len(ticks) == server.count == 12


def test_open_loop_does_not_wait_for_answers():
    server = Server(0.3)
    start = time.perf_counter()
    result = against(server, lambda http: open_loop(http, [BODY] * 20, 200.0, 1, lambda: None))
    assert server.most > 10
    assert time.perf_counter() - start < 3
    assert len(result.good) == 20


def test_failures_are_counted_by_kind():
    trouble = {1: "busy", 2: "connection", 3: "error event", 5: "broken", 6: "busy"}
    result = against(Server(0, trouble), lambda http: closed_loop(http, [BODY] * 8, 1, lambda: None))
    summary = result.summary()
    assert summary["failures"] == {"429": 2, "ConnectError": 1, "error event": 1, "broken stream": 1}
    assert (summary["requests"], summary["ok"]) == (8, 3)


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


def test_prompts_are_the_seeds_and_new_in_every_round():
    args = arguments("--requests", "30", "--mode", "speed")
    assert serve.bodies(args, 0) == serve.bodies(args, 0)
    assert serve.bodies(args, 0) != serve.bodies(args, 1)
    body = serve.bodies(args, 0)[0]
    assert (body["max_tokens"], body["decoding"]) == (64, {"mode": "speed"})
    assert body["messages"][-1]["role"] == "user"


def test_a_running_server_is_loaded_and_reported(monkeypatch, tmp_path, capsys):
    server = Server(0, {7: "busy"})
    real = httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **kw: real(transport=httpx.MockTransport(server), **kw))
    out = tmp_path / "out.json"
    args = arguments("--url", "http://x", "--clients", "1", "3", "--rate", "500", "--requests", "5", "--json", str(out))
    assert serve.main(args) == 1  # a request failed
    report = json.loads(out.read_text())
    assert [next(iter(load)) for load in report["loads"]] == ["clients", "clients", "rate"]
    assert sum(load["rounds"][0]["ok"] for load in report["loads"]) == 14
    assert "api_key" not in report["settings"]
    shown = capsys.readouterr().out
    assert "1 x 429" in shown
    assert "3 clients against 1:" in shown


@pytest.mark.parametrize("argv", [["--requests", "0"], ["--clients", "0"], ["--rate", "-1"], ["--rounds", "0"]])
def test_senseless_loads_are_refused(argv, capsys):
    assert serve.main(arguments(*argv)) == 2
    assert "above 0" in capsys.readouterr().err
