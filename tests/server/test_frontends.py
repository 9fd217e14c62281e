"""Several processes that speak HTTP over the same backends: one server to everybody outside."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import re
import signal
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.server.harness import FAKE, ServerProcess, has_ended, serving, sse
from tests.server.test_supervision import ENDLESS, start
from tests.wait import TIMEOUT, wait_until

PROCESSES = 3
STREAM = json.dumps({**ENDLESS, "stream": True}).encode()
# of one that does not answer: what its head does without it
SILENCE = {
    "runtime.server.frontends.place.LATE_SECONDS": 3.0,
    "runtime.server.frontends.crew.REPORT_SECONDS": 0.5,
}


@pytest.fixture(scope="module")
def crew(checkpoint: Path) -> Iterator[ServerProcess]:
    args = ("--model", str(checkpoint), "--served-model-name", "tiny", "--max-num-reqs", "16", "--max-queue", "16")
    with serving(*args, "--frontend-processes", str(PROCESSES), module=FAKE) as server:
        yield server


def frontends(server: ServerProcess) -> list[psutil.Process]:
    return sorted(server.frontends(), key=lambda process: process.pid)


def connections(server: ServerProcess) -> list[int]:
    """Of each process."""
    return [len(process.net_connections("tcp")) for process in frontends(server)]


@contextlib.contextmanager
def alone(server: ServerProcess) -> Iterator[httpx.Client]:
    """A client whose connection is the only one that any process or the head still counts."""
    with server.client() as client:

        def open_connections() -> list[str]:
            lines = client.get("/metrics").text.splitlines()
            return [line.split()[-1] for line in lines if line.startswith("unmask_connections{")]

        wait_until(lambda: open_connections() == ["1.0"], "the end of other connections")
        yield client


def until_all_serve(server: ServerProcess) -> None:
    """Waits until new connections reach every process. One that was started again takes none until it can serve."""

    def reached() -> bool:
        with alone(server), contextlib.ExitStack() as stack:
            for _ in range(PROCESSES - 1):
                stack.enter_context(server.client()).get("/health")
            return all(connections(server))

    server.until(reached)


def handlers(log: str) -> Counter[str]:
    """Answers of /generate by the process that wrote their line."""
    return Counter(line.split()[2].rstrip(":") for line in log.splitlines() if "POST /generate 200" in line)


def test_connections_go_round_and_figures_are_of_all(crew: ServerProcess) -> None:
    crew.until_idle()
    before = crew.metrics()
    for _ in range(12):
        with crew.client() as client:
            assert client.post("/generate", json={"prompt": "x", "max_tokens": 4}).json()["text"] == "abca"
    wait_until(lambda: set(handlers(crew.log)) == {f"frontend-{i}" for i in range(PROCESSES)})
    for name in ('unmask_requests_total{outcome="length"}', "unmask_request_seconds_count"):
        crew.until_metric(name, before.get(name, 0) + 12)
    found = crew.metrics()
    assert {f"frontend-{i}" for i in range(PROCESSES)} <= {
        key.split('"')[1] for key in found if key.startswith("process_resident_memory_bytes")
    }


def test_connections_that_stay_are_spread_evenly(crew: ServerProcess) -> None:
    with alone(crew), concurrent.futures.ThreadPoolExecutor(12) as pool:
        clients = [crew.client() for _ in range(11)]
        list(pool.map(lambda client: client.get("/health"), clients))
        wait_until(lambda: connections(crew) == [4] * PROCESSES)
        for client in clients:
            client.close()


def test_the_queue_is_one(crew: ServerProcess) -> None:
    """32 places, whichever process is asked; what is refused is refused before an answer begins."""
    all_know = threading.Barrier(60)  # until then none ends

    def ask(_: int) -> int:
        with crew.client() as client, client.stream("POST", "/generate", json={**ENDLESS, "stream": True}) as answer:
            all_know.wait(TIMEOUT)
            return answer.status_code

    with concurrent.futures.ThreadPoolExecutor(60) as pool:
        statuses = Counter(pool.map(ask, range(60)))
    assert set(statuses) == {200, 429}
    assert 32 <= statuses[200] < 60
    crew.until_idle()


def test_a_killed_process_takes_only_its_own_requests(crew: ServerProcess, tmp_path: Path) -> None:
    done = tmp_path / "done"
    crew.until_idle()
    before = crew.metrics()["unmask_request_seconds_count"]
    victim = frontends(crew)[0]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = start(crew, pool, 9, cache_salt=f"hold:{done}")
        os.kill(victim.pid, signal.SIGKILL)
        wait_until(lambda: any(one.done() for one in answers))
        done.touch()
        lost = sum(isinstance(one.exception(timeout=TIMEOUT), httpx.TransportError) for one in answers)
        assert 1 <= lost <= 5  # of nine, a third or so
        assert all(one.result().status_code == 200 for one in answers if one.exception() is None)
    crew.until_idle()  # the engine does not work for those that are gone
    assert crew.metrics()["unmask_request_seconds_count"] >= before  # a total never becomes less
    until_all_serve(crew)
    assert victim.pid not in {process.pid for process in frontends(crew)}
    with crew.client() as client:
        for _ in range(6):
            assert client.get("/ready").status_code == 200


def test_a_killed_backend_is_told_to_every_process(crew: ServerProcess) -> None:
    (backend,) = crew.backends()
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = start(crew, pool, 6)
        os.kill(backend.pid, signal.SIGKILL)
        assert {one.result(timeout=TIMEOUT).status_code for one in answers} == {503}
    crew.until_ready()
    for _ in range(PROCESSES):
        with crew.client() as client:
            assert client.post("/generate", json={"prompt": "x", "max_tokens": 2}).status_code == 200


@pytest.mark.matrix
def test_one_that_is_stopped_holds_up_its_own_alone(checkpoint: Path, tmp_path: Path) -> None:
    """Those who come get to the others, and what it had goes on with it."""
    done = tmp_path / "done"
    args = ("--model", str(checkpoint), "--frontend-processes", "2")
    with (
        serving(*args, module=FAKE, limits=SILENCE) as server,
        concurrent.futures.ThreadPoolExecutor(6) as pool,
    ):
        answers = start(server, pool, 6, cache_salt=f"hold:{done}")
        counts = connections(server)
        own = max(counts)
        stopped = frontends(server)[counts.index(own)]
        os.kill(stopped.pid, signal.SIGSTOP)
        try:

            def all_are_served() -> bool:
                for _ in range(9):
                    with server.client() as client:
                        client.get("/health", timeout=10).raise_for_status()
                return True

            server.until(all_are_served)  # TransportErrors, and a time-out is one, are tried again
            done.touch()
            wait_until(lambda: sum(one.done() for one in answers) >= 6 - own)
            server.until_metric("unmask_backends_ready", 1)
            assert not all(one.done() for one in answers)
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        assert [one.result(timeout=TIMEOUT).status_code for one in answers] == [200] * 6
        server.until_idle()
        assert stopped.pid in {process.pid for process in frontends(server)}


def test_streams_that_are_given_up_leave_nothing(crew: ServerProcess) -> None:
    def files() -> list[int]:
        return [process.num_fds() for process in frontends(crew)]

    crew.until_idle()
    wait_until(lambda: not any(connections(crew)))
    before = files()
    fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(STREAM)}\r\n\r\n"
    head = b"POST /generate HTTP/1.1\r\n" + fields.encode()
    sent = [b"", head[:30], head + STREAM[:9], head + STREAM, head + STREAM]
    for number in range(400):
        with socket.create_connection(("127.0.0.1", crew.port)) as client:
            client.sendall(sent[number % 5])
            if number % 5 == 4:
                client.recv(12)
            if number % 2:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
    crew.until_idle()
    wait_until(lambda: files() == before)
    with alone(crew), contextlib.ExitStack() as stack:  # and the head has counted them all: it spreads them evenly
        for _ in range(10 * PROCESSES - 1):
            stack.enter_context(socket.create_connection(("127.0.0.1", crew.port)))
        wait_until(lambda: connections(crew) == [10] * PROCESSES)


def test_a_drain_finishes_streams_of_all(checkpoint: Path, tmp_path: Path) -> None:
    done = tmp_path / "done"
    args = ("--model", str(checkpoint), "--frontend-processes", "2", "--drain-timeout", "600")
    with serving(*args, module=FAKE) as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = start(server, pool, 6, cache_salt=f"hold:{done}", stream=True)
        others = [*server.backends(), *frontends(server)]
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "draining" in server.log)
        done.touch()
        for one in answers:
            assert sse(one.result(timeout=TIMEOUT).text)[-1] == "[DONE]"
        assert server.wait() == 0
        wait_until(lambda: all(map(has_ended, others)))


@pytest.mark.matrix
def test_one_that_cannot_serve_any_more_does_not_end_the_others(checkpoint: Path, tmp_path: Path) -> None:
    """What it reads at its start was in order when the others read it."""
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}")
    args = ("--model", str(checkpoint), "--frontend-processes", "2", "--chat-template", str(template))
    with serving(*args, module=FAKE) as server:
        template.write_text("{% if %}")
        victim = frontends(server)[0]
        victim.kill()
        wait_until(lambda: re.search(r"frontend-\d ended: .*template", server.log))
        assert server.metrics()["unmask_backends_ready"] == 1
        template.write_text("{{ messages[0].content }}")
        found: set[str] = set()

        def asked() -> bool:
            with server.client() as client:
                client.post("/generate", json={"prompt": "x", "max_tokens": 2}).raise_for_status()
            found.update(handlers(server.log[server.log.index(" ended: ") :]))
            return len(found) == 2

        server.until(asked)


def test_with_the_head_everything_ends(checkpoint: Path) -> None:
    with serving("--model", str(checkpoint), "--frontend-processes", "2", module=FAKE) as server:
        others = [*server.backends(), *frontends(server)]
        assert len(others) == 3
        server.process.kill()
        wait_until(lambda: all(map(has_ended, others)))


def test_a_tokenizer_that_cannot_be_read_ends_start_up_with_one_sentence(checkpoint: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% if %}")
    args = ("--model", str(checkpoint), "--frontend-processes", "2", "--chat-template", str(template))
    with serving(*args, module=FAKE, ready=False) as server:
        assert server.wait() == 1
        (sentence,) = [line for line in server.log.splitlines() if line.startswith("error: ")]
        assert "template" in sentence


def test_a_signal_while_processes_start_ends_quietly(checkpoint: Path) -> None:
    with serving("--model", str(checkpoint), "--frontend-processes", "3", module=FAKE, ready=False) as server:
        assert server.url
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        assert "Error" not in server.log
