"""Several processes that speak HTTP over the same backends: one server to everybody outside."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.core import Metric

from runtime.errors import RequestError
from runtime.request.io import EngineOutput
from runtime.server.frontends import words
from runtime.server.frontends.board import Board, Owned
from runtime.server.frontends.channel import Channel
from runtime.server.frontends.dealer import Dealer
from runtime.server.frontends.reports import Reports, told
from runtime.server.frontends.words import Failed, Refusal
from runtime.server.messages import Outputs, encode
from runtime.server.observed import Observed
from tests.server.harness import FAKE, ServerProcess, serving, sse, wait_for
from tests.server.test_supervision import SLOW, start_slow

PROCESSES = 3


@pytest.fixture(scope="module")
def crew(checkpoint: Path) -> Iterator[ServerProcess]:
    args = ("--model", str(checkpoint), "--served-model-name", "tiny", "--max-num-reqs", "16", "--max-queue", "16")
    with serving(*args, "--frontend-processes", str(PROCESSES), module=FAKE) as server:
        yield server


def frontends(server: ServerProcess) -> list[psutil.Process]:
    found = [p for p in psutil.Process(server.process.pid).children() if "frontends.process" in " ".join(p.cmdline())]
    return sorted(found, key=lambda process: process.pid)


def handlers(log: str) -> Counter[str]:
    """Answers of /generate by the process that wrote their line."""
    return Counter(line.split()[2].rstrip(":") for line in log.splitlines() if "POST /generate 200" in line)


def test_connections_go_round_and_figures_are_of_all(crew: ServerProcess) -> None:
    crew.until_idle()
    before = crew.metrics()
    for _ in range(12):
        with crew.client() as client:
            assert client.post("/generate", json={"prompt": "x", "max_tokens": 4}).json()["text"] == "abca"
    assert set(handlers(crew.log)) == {f"frontend-{i}" for i in range(PROCESSES)}
    found = crew.metrics()
    for name in ('unmask_requests_total{outcome="length"}', "unmask_request_seconds_count"):
        assert found[name] - before.get(name, 0) == 12
    assert {f"frontend-{i}" for i in range(PROCESSES)} <= {
        key.split('"')[1] for key in found if key.startswith("process_resident_memory_bytes")
    }


def test_connections_that_stay_are_spread_evenly(crew: ServerProcess) -> None:
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        clients = [crew.client() for _ in range(12)]
        list(pool.map(lambda client: client.get("/health"), clients))
        counts = [len(process.net_connections("tcp")) for process in frontends(crew)]
        for client in clients:
            client.close()
    assert max(counts) - min(counts) <= 1
    assert sum(counts) >= 12


def test_the_queue_is_one(crew: ServerProcess) -> None:
    """32 places, whichever process is asked; what is refused is refused before an answer begins."""

    def ask(_: int) -> int:
        with crew.client() as client:
            return client.post("/generate", json={**SLOW, "max_tokens": 60, "stream": True}).status_code

    with concurrent.futures.ThreadPoolExecutor(60) as pool:
        statuses = Counter(pool.map(ask, range(60)))
    assert set(statuses) == {200, 429}
    assert 32 <= statuses[200] < 60
    crew.until_idle()


def test_a_killed_process_takes_only_its_own_requests(crew: ServerProcess) -> None:
    crew.until_idle()
    before = crew.metrics()["unmask_request_seconds_count"]
    victim = frontends(crew)[0]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = start_slow(crew, pool, 9, max_tokens=100)
        os.kill(victim.pid, signal.SIGKILL)
        lost = sum(isinstance(one.exception(timeout=30), httpx.TransportError) for one in answers)
        assert 1 <= lost <= 5  # of nine, a third or so
        assert all(one.result().status_code == 200 for one in answers if one.exception() is None)
    crew.until_idle()  # the engine does not work for those that are gone
    assert crew.metrics()["unmask_request_seconds_count"] >= before  # a total never becomes less
    wait_for(lambda: len(frontends(crew)) == PROCESSES, 20)
    assert victim.pid not in {process.pid for process in frontends(crew)}
    with crew.client() as client:
        for _ in range(6):
            assert client.get("/ready").status_code == 200


def test_a_killed_backend_is_told_to_every_process(crew: ServerProcess) -> None:
    (backend,) = crew.backends()
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = start_slow(crew, pool, 6)
        killed = time.monotonic()
        os.kill(backend.pid, signal.SIGKILL)
        assert {one.result(timeout=5).status_code for one in answers} == {503}
        assert time.monotonic() - killed < 2
    crew.until_ready(20)
    for _ in range(PROCESSES):
        with crew.client() as client:
            assert client.post("/generate", json={"prompt": "x", "max_tokens": 2}).status_code == 200


def test_a_drain_finishes_streams_of_all(checkpoint: Path) -> None:
    args = ("--model", str(checkpoint), "--frontend-processes", "2", "--drain-timeout", "20")
    with serving(*args, module=FAKE) as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = start_slow(server, pool, 6, max_tokens=80, stream=True)
        others = [*server.backends(), *frontends(server)]
        server.process.send_signal(signal.SIGTERM)
        for one in answers:
            assert sse(one.result(timeout=20).text)[-1] == "[DONE]"
        assert server.wait(20) == 0
        assert not any(process.is_running() and process.status() != "zombie" for process in others)


def test_with_the_head_everything_ends(checkpoint: Path) -> None:
    with serving("--model", str(checkpoint), "--frontend-processes", "2", module=FAKE) as server:
        others = [*server.backends(), *frontends(server)]
        assert len(others) == 3
        server.process.kill()
        _, alive = psutil.wait_procs(others, timeout=10)
        assert not alive


def test_a_tokenizer_that_cannot_be_read_ends_start_up_with_one_sentence(checkpoint: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% if %}")
    args = ("--model", str(checkpoint), "--frontend-processes", "2", "--chat-template", str(template))
    with serving(*args, module=FAKE, ready=False) as server:
        assert server.wait(30) == 1
        (sentence,) = [line for line in server.log.splitlines() if line.startswith("error: ")]
        assert "template" in sentence


# -- the parts


def test_messages_come_whole_however_they_are_cut() -> None:
    draw = random.Random(3)
    sent = [
        Outputs([EngineOutput(id=str(n), nfe=n, new_tokens=list(range(draw.choice([0, 3, 4000]))))]) for n in range(40)
    ]
    sent.append(Failed(["a", "b"], Refusal.of(RequestError("no", param="n", status=429, code="queue_full"))))
    data = b"".join(len(one).to_bytes(4, "big") + one for one in map(encode, sent))
    heard: list[words.FromHead] = []
    channel = Channel(words.from_head, heard.append, lambda: None)
    while data:
        size = draw.choice([1, 3, 4, 5, 1000, 60000])
        channel.data_received(data[:size])
        data = data[size:]
    assert heard == sent
    error = heard[-1].refusal.error()  # type: ignore[union-attr]
    assert (error.message, error.param, error.status, error.code) == ("no", "n", 429, "queue_full")


def test_the_board_shows_each_owner_as_the_head_counts(tmp_path: Path) -> None:
    ours, theirs = Board(tmp_path / "board", 2), Board(tmp_path / "board", 2)
    owned = Owned(ours)
    for owner in ("a", "b", "a"):
        owned[owner] += 1
    assert (theirs.held("a"), theirs.held("b"), theirs.held("c")) == (2, 1, 0)
    owned["b"] -= 1
    del owned["b"]
    assert theirs.held("b") == 0
    ours.live = 7
    ours.take(1, 5)
    theirs.close(1)
    assert (theirs.live, theirs.taken(1), theirs.taken(0), ours.closed(1)) == (7, 5, 0, 1)
    ours.renew(1)
    assert (theirs.taken(1), ours.closed(1), theirs.live) == (0, 0, 7)


def observing(ends: int, connections: int) -> Observed:
    made = Observed()
    made.requests.labels("stop").inc(ends)
    for _ in range(ends):
        made.end_to_end.observe(0.2)
    made.connections.set(connections)
    return made


def test_reports_add_up_and_totals_outlive_their_process() -> None:
    def samples(found: Reports) -> dict[str, float]:
        metrics: list[Metric] = list(found.collect())
        wanted = ("unmask_requests_total", "unmask_request_seconds_count", "unmask_connections")
        return {s.name: s.value for m in metrics for s in m.samples if s.name in wanted}

    reports = Reports()
    assert samples(reports)["unmask_connections"] == 0
    reports.take(0, told(observing(3, 5)))
    reports.take(1, told(observing(4, 2)))
    both = {"unmask_requests_total": 7, "unmask_request_seconds_count": 7, "unmask_connections": 7}
    assert samples(reports) == both
    reports.retire(0)
    assert samples(reports) == both | {"unmask_connections": 2}
    reports.take(0, told(observing(1, 1)))  # the next in its place
    assert samples(reports) == {"unmask_requests_total": 8, "unmask_request_seconds_count": 8, "unmask_connections": 3}


class Taker:
    def __init__(self, room: int) -> None:
        self.handed = 0
        self.room = room

    def open(self) -> int:
        return self.handed

    def take(self, connection: socket.socket) -> bool:
        if self.handed >= self.room:
            return False
        self.handed += 1
        return True


def test_who_has_fewest_gets_the_next_and_who_waits_is_not_lost() -> None:
    async def deal() -> None:
        with socket.socket() as listener, contextlib.ExitStack() as stack:
            listener.bind(("127.0.0.1", 0))
            listener.listen(100)
            takers = [Taker(3), Taker(100)]
            takers[1].handed = 2
            dealer = Dealer(listener, lambda: takers)
            for _ in range(5):
                stack.enter_context(socket.create_connection(listener.getsockname()))
            dealer.deal()
            assert [taker.handed for taker in takers] == [3, 4]
            takers[1].room = 4
            stack.enter_context(socket.create_connection(listener.getsockname()))
            await asyncio.sleep(0.05)
            assert dealer.kept is not None
            takers[1].room = 5
            await asyncio.sleep(0.1)
            assert dealer.kept is None
            assert takers[1].handed == 5
            stack.enter_context(socket.create_connection(listener.getsockname()))
            takers[0].room = 4
            await dealer.close()
            assert takers[0].handed == 4

    asyncio.run(deal())


def test_a_want_of_descriptors_is_waited_out_without_work() -> None:
    class Short:
        tries = 0

        def __init__(self, listener: socket.socket) -> None:
            self.listener = listener

        def __getattr__(self, name: str) -> object:
            return getattr(self.listener, name)

        def accept(self) -> tuple[socket.socket, object]:
            self.tries += 1
            if self.tries < 4:
                raise OSError(errno.EMFILE, "Too many open files")
            return self.listener.accept()

    async def deal() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
            short, taker = Short(listener), Taker(9)
            dealer = Dealer(short, lambda: [taker])  # type: ignore[arg-type]
            dealer.deal()
            await asyncio.sleep(0.03)
            assert (taker.handed, short.tries) == (0, 2)
            await asyncio.sleep(0.1)
            assert (taker.handed, short.tries) == (1, 5)  # the last found nobody
            await dealer.close()

    asyncio.run(deal())


def test_a_signal_while_processes_start_ends_quietly(checkpoint: Path) -> None:
    with serving("--model", str(checkpoint), "--frontend-processes", "3", module=FAKE, ready=False) as server:
        assert server.url
        server.process.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
        assert "Error" not in server.log
