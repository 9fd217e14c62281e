"""Tests of the supervisor of backends, in this process: ends of backends, messages of strangers, secrets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from runtime.config import EngineConfig, ServerConfig
from runtime.errors import RequestError
from runtime.request.engine_messages import DecodingParams, EngineOutput, RequestSpec
from runtime.server.engine_client import ipc_protocol, ipc_sockets
from runtime.server.engine_client import supervisor as supervisor_module
from runtime.server.engine_client.client import OutputQueue, fail_queues
from runtime.server.engine_client.ipc_sockets import Endpoint
from runtime.server.engine_client.supervisor import MAX_DELAY_SECONDS, RESET_SECONDS, ProcessSlot, Supervisor
from tests.on_loop import on_loop
from tests.server.fake_engine import BLOCK_VARIABLE
from tests.server.harness import FAKE, KEY, ROOT, ServerProcess
from tests.wait import wait_until_async

BACKEND = (sys.executable, "-m", FAKE)


class Log:
    """An observer that records the events of a supervisor."""

    def __init__(self) -> None:
        self.ready = 0
        self.failures: list[str] = []  # that end the server
        self.reasons: list[str] = []
        self.outputs: list[EngineOutput] = []

    def on_ready(self, replica: int, info: Any, load_seconds: float) -> None:
        self.ready += 1

    def on_outputs(self, replica: int, outputs: list[EngineOutput]) -> None:
        self.outputs += outputs

    def on_stats(self, replica: int, stats: Any) -> None:
        pass

    def on_down(self, replica: int, reason: str) -> None:
        self.reasons.append(reason)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT)
    return tmp_path_factory.mktemp("s")


@pytest.fixture(autouse=True)
def long_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets limits that a slow machine does not reach. A test of a limit sets it again."""
    monkeypatch.setattr(supervisor_module, "EXIT_REASON_SECONDS", 3600.0)
    monkeypatch.setattr(supervisor_module, "STOP_SECONDS", 60.0)
    monkeypatch.setattr(ipc_protocol, "BACKEND_SILENCE_SECONDS", 3600.0)
    monkeypatch.setattr(ipc_protocol, "UNRESPONSIVE_SECONDS", 3600.0)


@contextlib.asynccontextmanager
async def supervised(
    folder: Path, log: Log, command: tuple[str, ...] = BACKEND, num_nodes: int = 1, **engine: Any
) -> AsyncIterator[Supervisor]:
    """Yields a supervisor of one backend, which the log observes."""
    config = ServerConfig(engine=EngineConfig(**engine), num_nodes=num_nodes, master_port=1 if num_nodes > 1 else None)
    supervisor = Supervisor(config, folder, log.failures.append, command)
    supervisor.observer = log
    await supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.stop("done")


def process_of(supervisor: Supervisor) -> Process:
    process = supervisor.replicas[0].process
    assert process is not None
    return process


async def answered(supervisor: Supervisor, log: Log) -> None:
    """Sends a request, and waits for its end."""
    spec = RequestSpec(id="a", prompt=[1], max_tokens=2, decoding=DecodingParams())
    supervisor.send(0, ipc_protocol.Add.of([spec]))
    await wait_until_async(lambda: any(output.id == "a" and output.finish_reason for output in log.outputs))


@on_loop
@pytest.mark.parametrize("removed", ["commands", "events"])
async def test_the_server_ends_if_its_sockets_were_removed(folder: Path, removed: str) -> None:
    log = Log()
    async with supervised(folder, log) as supervisor:
        await wait_until_async(lambda: log.ready == 1)
        (folder / removed).unlink()
        await answered(supervisor, log)  # what is connected goes on
        process_of(supervisor).kill()
        await wait_until_async(lambda: log.failures)
    assert f"{folder}/{removed} was removed" in log.failures[0]


@on_loop
async def test_a_backend_that_hangs_is_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipc_protocol, "PING_SECONDS", 0.2)

    class Patient(Log):
        """Raises the limit again when the first process ends, because the next one may be slow without hanging."""

        def on_down(self, replica: int, reason: str) -> None:
            super().on_down(replica, reason)
            monkeypatch.setattr(ipc_protocol, "BACKEND_SILENCE_SECONDS", 3600.0)

    log = Patient()
    async with supervised(folder, log) as supervisor:
        await wait_until_async(lambda: log.ready == 1)
        os.kill(process_of(supervisor).pid, signal.SIGSTOP)
        monkeypatch.setattr(ipc_protocol, "BACKEND_SILENCE_SECONDS", 0.5)
        await wait_until_async(lambda: log.reasons)
        assert "was unresponsive" in log.reasons[0]
        assert not supervisor.ready
        await wait_until_async(lambda: log.ready == 2)
        await answered(supervisor, log)
    assert log.failures == []


MISSING = "tensor 'model.norm.weight' is missing"  # with which the fake engine refuses to load


@on_loop
async def test_a_failed_load_is_reported_once_and_not_repeated(folder: Path) -> None:
    log = Log()
    async with supervised(folder, log, accept_threshold=0.0) as supervisor:
        await wait_until_async(lambda: log.failures)
        await wait_until_async(supervisor.tasks[0].done)  # no other backend is started
    assert log.failures == [MISSING]
    assert supervisor.replicas[0].starts == 1


@on_loop
@pytest.mark.parametrize("nodes", [1, 2])
async def test_a_server_whose_other_host_does_not_return_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    """A server of one host loads its model again and again."""
    log = Log()
    async with supervised(folder, log, num_nodes=nodes, tensor_parallel_size=nodes) as supervisor:
        await wait_until_async(lambda: log.ready == 1)
        supervisor.engine_config = lambda: EngineConfig(accept_threshold=0.0)
        process_of(supervisor).kill()
        await wait_until_async(lambda: log.failures if nodes > 1 else supervisor.replicas[0].starts > 2)
        assert log.failures == ([MISSING] if nodes > 1 else [])


@on_loop
async def test_a_reason_that_arrives_after_the_end_of_its_process_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, calls, log = Endpoint.read, 0, Log()
    supervisor = Supervisor(
        ServerConfig(engine=EngineConfig(accept_threshold=0.0)), folder, log.failures.append, BACKEND
    )
    supervisor.observer = log

    def read_later(endpoint: Endpoint) -> None:
        """Reads events only after the process has ended, and after three attempts."""
        nonlocal calls
        process = supervisor.replicas[0].process
        if endpoint is supervisor.commands:
            read(endpoint)
        elif process is not None and process.returncode is not None:
            calls += 1
            if calls > 3:
                read(endpoint)

    monkeypatch.setattr(Endpoint, "read", read_later)
    await supervisor.start()
    await wait_until_async(lambda: log.failures)
    await supervisor.stop("done")
    assert log.failures == [MISSING]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ((sys.executable, "-c", "raise SystemExit(1)"), "exit code 1 while it loaded the model"),
        (("/nowhere/program",), "the backend process could not be started"),
    ],
)
@on_loop
async def test_a_process_that_ends_without_a_reason_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], reason: str
) -> None:
    monkeypatch.setattr(supervisor_module, "EXIT_REASON_SECONDS", 0.05)
    log = Log()
    async with supervised(folder, log, command):
        await wait_until_async(lambda: log.failures)
    (failure,) = log.failures
    assert reason in failure


@on_loop
async def test_a_stopped_backend_is_not_ready_until_it_runs_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ipc_protocol, "PING_SECONDS", 0.2)
    log = Log()
    async with supervised(folder, log) as supervisor:
        await wait_until_async(lambda: supervisor.ready == [0])
        process = process_of(supervisor)
        os.kill(process.pid, signal.SIGSTOP)
        monkeypatch.setattr(ipc_protocol, "UNRESPONSIVE_SECONDS", 3.0)
        await wait_until_async(lambda: not supervisor.ready)
        os.kill(process.pid, signal.SIGCONT)
        await wait_until_async(lambda: supervisor.ready == [0])
        assert supervisor.replicas[0].process is process
        assert log.reasons == []


@on_loop
async def test_a_backend_whose_engine_is_busy_for_long_stays_ready(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As during compilation or graph capture, the engine's thread sends nothing, and another sends heartbeats."""
    blocked = tmp_path / "blocked"
    blocked.touch()
    monkeypatch.setenv(BLOCK_VARIABLE, str(blocked))
    log = Log()
    async with supervised(folder, log) as supervisor:
        await wait_until_async(lambda: supervisor.ready == [0])
        answer = asyncio.create_task(answered(supervisor, log))
        replica = supervisor.replicas[0]
        await wait_until_async(lambda: replica.last_beat - replica.last_message > 3.0)
        assert supervisor.ready == [0]
        blocked.unlink()
        await answer


FIRST = b"backend-0.1"


def forged(id: str) -> bytes:
    return ipc_protocol.encode(ipc_protocol.Outputs([EngineOutput(id=id, nfe=1)]))


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    with contextlib.closing(Stranger()) as stranger:
        yield stranger


LOST = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Stranger:
    """Sockets of a process that the frontend has not started."""

    def __init__(self) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.monitors: dict[zmq.Socket[bytes], zmq.Socket[bytes]] = {}

    def connect(self, kind: int, addr: str) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        self.monitors[socket] = socket.get_monitor_socket()
        socket.connect(addr)
        return socket

    async def until(self, socket: zmq.Socket[bytes], events: int) -> None:
        """Waits until one of these events occurs on the socket's connection."""

        def seen() -> bool:
            monitor = self.monitors[socket]
            while monitor.poll(0):
                if recv_monitor_message(monitor)["event"] & events:
                    return True
            return False

        await wait_until_async(seen, "an event of a connection")

    def close(self) -> None:
        self.context.destroy(0)


def nested(depth: int) -> bytes:
    """Returns an event with a field of `depth` nested lists, which a decoder must skip."""
    return b"\x82\xa4type\xa7Outputs\xa1x" + b"\x91" * depth + b"\xc0"


@on_loop
async def test_a_message_that_cannot_be_decoded_is_one_log_line(
    folder: Path, stranger: Stranger, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log()
    with caplog.at_level(logging.DEBUG):
        async with supervised(folder, log) as supervisor:
            await wait_until_async(lambda: log.ready == 1)
            socket = stranger.connect(zmq.PUSH, supervisor.event_addr)
            for data in (nested(100_000), b"\x91" * 100_000, b"", b"\xff"):
                socket.send_multipart([FIRST, data])
            for frames in ([b"one"], [b"a", b"b", b"c"], [FIRST, b"", b""], [b"backend-0.0", forged("ended")]):
                socket.send_multipart(frames)
            socket.send_multipart([FIRST, forged("x")])
            await wait_until_async(lambda: log.outputs)
            assert [output.id for output in log.outputs] == ["x"]
            assert not [task for task in supervisor.tasks if task.done()]
    with pytest.raises(ValueError, match="not a hello"):
        ipc_protocol.decode_hello(nested(100_000))
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 4
    for record in warnings:
        assert not record.exc_info
        assert "backend-0.1: ignoring an invalid message" in record.getMessage()
        assert "\n" not in record.getMessage()
        assert len(record.getMessage()) < 400


@on_loop
async def test_messages_larger_than_any_backend_sends_are_refused(
    folder: Path, stranger: Stranger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(ipc_sockets.MAX_FRAME_BYTES, zmq.PULL, 64 << 10)
    log = Log()
    with caplog.at_level(logging.ERROR):
        async with supervised(folder, log) as supervisor:
            await wait_until_async(lambda: log.ready == 1)
            large, small = (stranger.connect(zmq.PUSH, supervisor.event_addr) for _ in range(2))
            large.send_multipart([FIRST, b"x" * (64 << 10) + b"x"])
            await stranger.until(large, LOST)
            assert not caplog.records
            small.send_multipart([FIRST, b"x" * (63 << 10)])
            await wait_until_async(lambda: caplog.records)
            await answered(supervisor, log)


def test_backends_do_not_get_the_servers_secrets(keyed: ServerProcess) -> None:
    (backend,) = keyed.backends()
    found = Path(f"/proc/{backend.pid}/environ").read_text()
    assert KEY not in found
    assert "PATH=" in found
    arguments = psutil.Process(backend.pid).cmdline()
    *_, name = arguments[: arguments.index("--command-addr")]
    assert name == "backend-0.1"
    assert all(len(argument) < 40 or "/" in argument for argument in arguments)  # a key has 40 characters


def test_back_off_doubles_up_to_its_limit_and_is_reset_by_a_process_that_served() -> None:
    slot = ProcessSlot("backend", 0)

    def delay(served: float) -> float:
        slot.serving_since = time.monotonic() - served if served else 0.0
        return slot.restart_delay()

    seconds = [delay(1.0) for _ in range(9)]
    assert seconds[:4] == [0.5, 1.0, 2.0, 4.0]
    assert seconds[-1] == MAX_DELAY_SECONDS
    assert [delay(RESET_SECONDS + 1), delay(0.0)] == [0.5, 1.0]


def test_starts_that_fail_after_a_long_service_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []

    async def sleep(seconds: float) -> None:
        delays.append(seconds)

    async def fail(slot: ProcessSlot) -> str:
        raise OSError("no space is left")

    monkeypatch.setattr(asyncio, "sleep", sleep)
    slot = ProcessSlot("backend", 0)
    slot.serving_since = time.monotonic() - RESET_SECONDS - 1
    asyncio.run(slot.supervise(fail, lambda slot, reason: len(delays) < 4))
    assert delays == [0.5, 1.0, 2.0, 4.0]


def test_each_queue_receives_an_error_once() -> None:
    first, second, error = OutputQueue(), OutputQueue(), RequestError("no", status=503)
    assert fail_queues([first, second, first], error) == 2
    for queue in (first, second):
        assert queue.get_nowait() is error
        assert queue.empty()
