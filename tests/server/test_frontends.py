"""Tests of several processes that serve HTTP with the same backends, which clients see as one server."""

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
from typing import Any

import httpx
import psutil
import pytest

from tests.server.harness import FAKE, ServerProcess, has_ended, serving, sse
from tests.server.test_supervision import ENDLESS, start
from tests.wait import TIMEOUT, wait_until

pytestmark = pytest.mark.processes

PROCESSES = 3
STREAM = json.dumps({**ENDLESS, "stream": True}).encode()
SHORT: dict[str, Any] = {"prompt": "x", "max_tokens": 4}


@pytest.fixture(scope="module")
def several(checkpoint: Path) -> Iterator[ServerProcess]:
    args = ("--model", str(checkpoint), "--served-model-name", "tiny", "--max-num-reqs", "16", "--max-queue", "16")
    with serving(*args, "--frontend-processes", str(PROCESSES), module=FAKE) as server:
        yield server


def frontends(server: ServerProcess) -> list[psutil.Process]:
    return sorted(server.frontends(), key=lambda process: process.pid)


def connections(server: ServerProcess) -> list[int]:
    """Returns the number of TCP connections of each process, without the listener."""
    return [len(process.net_connections("tcp")) - 1 for process in frontends(server)]


def process_of(server: ServerProcess, client: httpx.Client) -> int:
    """Returns the pid of the process that serves the connection of this client."""
    port = client.get("/health").extensions["network_stream"].get_extra_info("client_addr")[1]
    for process in frontends(server):
        if any(found.raddr and found.raddr.port == port for found in process.net_connections("tcp")):
            return process.pid
    raise httpx.TransportError("the process has exited")


@contextlib.contextmanager
def clients(server: ServerProcess) -> Iterator[list[httpx.Client]]:
    """Yields one client per process, with a connection to it."""
    found: dict[int, httpx.Client] = {}

    def connected() -> bool:
        client = server.client()
        if found.setdefault(process_of(server, client), client) is not client:
            client.close()
        return len(found) == len(frontends(server))

    server.until(connected, "a connection to every process")
    yield [client for _, client in sorted(found.items())]
    for client in found.values():
        client.close()


def handlers(log: str) -> Counter[str]:
    """Counts answers of /generate by the process that logged them."""
    return Counter(line.split()[2].rstrip(":") for line in log.splitlines() if "POST /generate 200" in line)


def test_each_process_serves_and_metrics_are_sums_of_all(several: ServerProcess) -> None:
    several.until_idle()
    before = several.metrics()
    with clients(several) as each:
        for client in each * 4:
            assert client.post("/generate", json=SHORT).json()["text"] == "abca"
        wait_until(lambda: set(handlers(several.log)) == {f"frontend-{i}" for i in range(PROCESSES)})
        for client in each:
            assert 'unmask_connections{model_name="tiny"} 3.0' in client.get("/metrics").text
    for name in ('unmask_requests_total{outcome="length"}', "unmask_request_seconds_count"):
        several.until_metric(name, before.get(name, 0) + 12)
    found = several.metrics()
    assert {f"frontend-{i}" for i in range(PROCESSES)} <= {
        key.split('"')[1] for key in found if key.startswith("process_resident_memory_bytes")
    }
    with several.client() as client:  # the limits of 32 requests are divided
        assert client.post("/v1/completions", json={**SHORT, "n": 6}).json()["error"]["param"] == "n"


def test_a_killed_process_ends_only_its_own_requests(several: ServerProcess, tmp_path: Path) -> None:
    done = tmp_path / "done"
    several.until_idle()
    before = several.metrics()["unmask_request_seconds_count"]
    with clients(several) as each, concurrent.futures.ThreadPoolExecutor(PROCESSES) as pool:
        victim = process_of(several, each[0])
        body = {**ENDLESS, "cache_salt": f"hold:{done}"}
        answers = [pool.submit(client.post, "/generate", json=body) for client in each]
        several.until_metric("unmask_requests_running", PROCESSES)
        os.kill(victim, signal.SIGKILL)
        assert isinstance(answers[0].exception(TIMEOUT), httpx.TransportError)
        several.until_metric("unmask_requests_running", PROCESSES - 1)
        several.until_metric("unmask_kv_pages_used", PROCESSES - 1)  # those of the lost request are freed
        done.touch()
        assert [one.result(TIMEOUT).status_code for one in answers[1:]] == [200] * (PROCESSES - 1)
    several.until_idle()
    assert several.metrics()["unmask_request_seconds_count"] >= before  # a counter never decreases
    wait_until(lambda: len(frontends(several)) == PROCESSES)
    with clients(several) as each:
        assert victim not in {process_of(several, client) for client in each}
        assert [client.post("/generate", json=SHORT).status_code for client in each] == [200] * PROCESSES
        assert [client.get("/ready").status_code for client in each] == [200] * PROCESSES
    several.until_metric("unmask_max_connections", 4096)


def test_requests_of_every_process_end_with_their_backend(several: ServerProcess) -> None:
    (backend,) = several.backends()
    with clients(several) as each, concurrent.futures.ThreadPoolExecutor(PROCESSES) as pool:
        body = {**ENDLESS, "cache_salt": "endless"}
        answers = [pool.submit(client.post, "/generate", json=body) for client in each]
        several.until_metric("unmask_requests_running", PROCESSES)
        os.kill(backend.pid, signal.SIGKILL)
        assert {one.result(TIMEOUT).status_code for one in answers} == {503}
        assert all("killed by signal 9" in one.result().json()["error"]["message"] for one in answers)
        several.until_ready()
        for client in each:
            several.until(lambda client=client: client.post("/generate", json=SHORT).status_code == 200)
    several.until_metric("unmask_backends_ready", 1)


@pytest.mark.matrix
def test_an_unresponsive_process_is_replaced(checkpoint: Path) -> None:
    limits = {"runtime.server.frontend_processes.manager.SILENCE_SECONDS": 3.0}
    with serving("--model", str(checkpoint), "--frontend-processes", "2", module=FAKE, limits=limits) as server:
        stopped = frontends(server)[0]
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            for _ in range(9):  # connections reach the other process
                with server.client() as client:
                    assert client.post("/generate", json=SHORT).status_code == 200
            wait_until(lambda: has_ended(stopped))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(stopped.pid, signal.SIGCONT)
        wait_until(lambda: re.search(r"frontend-\d\.\d+ exited: the process was unresponsive for \d+ s", server.log))
        wait_until(lambda: len(frontends(server)) == 2)
        with clients(server) as each:
            assert [client.post("/generate", json=SHORT).status_code for client in each] == [200, 200]


def test_aborted_connections_leave_nothing(several: ServerProcess) -> None:
    def files() -> list[int]:
        return [process.num_fds() for process in frontends(several)]

    with clients(several) as each:  # a process opens a descriptor at its first connection
        assert [client.post("/generate", json=SHORT).status_code for client in each] == [200] * PROCESSES
    several.until_idle()
    wait_until(lambda: not any(connections(several)))
    before = files()
    fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(STREAM)}\r\n\r\n"
    head = b"POST /generate HTTP/1.1\r\n" + fields.encode()
    sent = [b"", head[:30], head + STREAM[:9], head + STREAM, head + STREAM]
    for number in range(400):
        with several.connect(sent[number % 5]) as client:
            if number % 5 == 4:
                client.recv(12)
            if number % 2:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes with a reset
    several.until_idle()
    wait_until(lambda: files() == before)


def test_changed_keys_apply_in_every_process_and_all_end_with_their_parent(checkpoint: Path, tmp_path: Path) -> None:
    first, second = "a" * 24, "b" * 24
    keys = tmp_path / "keys"
    keys.write_text(first)
    args = ("--model", str(checkpoint), "--frontend-processes", "2", "--api-key-file", str(keys))
    with serving(*args, module=FAKE) as server, clients(server) as each:

        def statuses(key: str) -> list[int]:
            headers = {"Authorization": f"Bearer {key}"}
            return [client.post("/generate", json=SHORT, headers=headers).status_code for client in each]

        assert (statuses(first), statuses(second)) == ([200, 200], [401, 401])
        keys.write_text(second)
        wait_until(lambda: (statuses(first), statuses(second)) == ([401, 401], [200, 200]))
        others = [*server.backends(), *frontends(server)]
        assert len(others) == 3
        server.process.kill()
        wait_until(lambda: all(map(has_ended, others)))


@pytest.mark.parametrize("to_all", [pytest.param(False, marks=pytest.mark.matrix), True])
def test_a_drain_finishes_streams_of_all(checkpoint: Path, tmp_path: Path, to_all: bool) -> None:
    done = tmp_path / "done"
    args = ("--model", str(checkpoint), "--frontend-processes", "2", "--drain-timeout", "600")
    with (
        serving(*args, module=FAKE) as server,
        clients(server) as each,
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        body = {**ENDLESS, "cache_salt": f"hold:{done}", "stream": True}
        answers = start(server, pool, 4, cache_salt=f"hold:{done}", stream=True)
        answers += [pool.submit(client.post, "/generate", json=body) for client in each]
        server.until_metric("unmask_requests_running", 6)
        others = [*server.backends(), *frontends(server)]
        for process in frontends(server) if to_all else ():
            process.terminate()
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "draining, 6 requests in flight" in server.log)
        done.touch()
        for one in answers:
            assert sse(one.result(timeout=TIMEOUT).text)[-1] == "[DONE]"
        assert server.wait() == 0
        wait_until(lambda: all(map(has_ended, others)))


@pytest.mark.parametrize("keep_alive", [True, pytest.param(False, marks=pytest.mark.matrix)])
def test_a_drain_under_load_fails_no_request(checkpoint: Path, keep_alive: bool) -> None:
    """Checks that each request is answered, or that its connection is refused before it is sent."""
    failed: list[str] = []
    answered = Counter[str]()
    args = ("--model", str(checkpoint), "--frontend-processes", "4", "--drain-delay", "1")
    with serving(*args, module=FAKE) as server:
        url = f"{server.url}/generate"

        def load() -> None:
            client = httpx.Client(timeout=TIMEOUT, trust_env=False)
            while True:
                try:
                    response = client.post(url, json=SHORT, headers={} if keep_alive else {"Connection": "close"})
                except httpx.ConnectError:
                    return
                except httpx.TransportError as error:
                    failed.append(repr(error))
                    return
                if response.status_code != 200:
                    failed.append(response.text)
                answered["all"] += 1
                if response.headers.get("connection") == "close":
                    answered["closing"] += 1
                    client.close()
                    client = httpx.Client(timeout=TIMEOUT, trust_env=False)

        threads = [threading.Thread(target=load) for _ in range(8)]
        for thread in threads:
            thread.start()
        wait_until(lambda: answered["all"] >= 40)
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(TIMEOUT)
        assert server.wait() == 0
    assert not failed
    assert answered["closing"] > 0


@pytest.mark.matrix
def test_a_process_that_cannot_start_again_does_not_end_the_others(checkpoint: Path, tmp_path: Path) -> None:
    """The template was valid when the other processes read it."""
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}")
    args = ("--model", str(checkpoint), "--frontend-processes", "2", "--chat-template", str(template))
    with serving(*args, module=FAKE) as server:
        template.write_text("{% if %}")
        victim = frontends(server)[0]
        victim.kill()
        wait_until(lambda: re.search(r"frontend-\d\.\d+ exited: .*template", server.log))
        assert server.metrics()["unmask_backends_ready"] == 1
        template.write_text("{{ messages[0].content }}")
        wait_until(lambda: len(frontends(server)) == 2)
        with clients(server) as each:
            assert [client.post("/generate", json=SHORT).status_code for client in each] == [200, 200]


def test_an_invalid_template_ends_the_start_with_one_sentence(checkpoint: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% if %}")
    args = ("--model", str(checkpoint), "--frontend-processes", "2", "--chat-template", str(template))
    with serving(*args, module=FAKE, ready=False) as server:
        assert server.wait() == 1
        (sentence,) = [line for line in server.log.splitlines() if line.startswith("error: ")]
        assert "template" in sentence
