"""Tests of the supervisor in this process, over backends without a model: cases that no HTTP client can cause."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime.config import EngineConfig, ServerConfig
from runtime.request.engine_messages import DecodingParams, EngineOutput, RequestSpec
from runtime.server.engine_client import ipc_protocol
from runtime.server.engine_client import supervisor as supervisor_module
from runtime.server.engine_client.ipc_sockets import Endpoint
from runtime.server.engine_client.supervisor import Supervisor
from tests.server.harness import ROOT
from tests.wait import wait_until_async

BACKEND = (sys.executable, "-m", "tests.server.fake_backend")


class Log:
    """An observer that records the events of a supervisor."""

    def __init__(self) -> None:
        self.ready = 0
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


def supervise(
    folder: Path, log: Log, failures: list[str], command: tuple[str, ...] = BACKEND, **engine: Any
) -> Supervisor:
    config = ServerConfig(engine=EngineConfig(**engine))
    supervisor = Supervisor(config, folder, failures.append, command)
    supervisor.observer = log
    return supervisor


def test_a_backend_that_hangs_is_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipc_protocol, "PING_SECONDS", 0.2)
    monkeypatch.setattr(ipc_protocol, "BACKEND_SILENCE_SECONDS", 3600.0)

    class Patient(Log):
        """Raises the limit again when the first process ends, because the next one may be slow without hanging."""

        def on_down(self, replica: int, reason: str) -> None:
            super().on_down(replica, reason)
            monkeypatch.setattr(ipc_protocol, "BACKEND_SILENCE_SECONDS", 3600.0)

    async def run() -> None:
        log, failures = Patient(), []
        supervisor = supervise(folder, log, failures)
        await supervisor.start()
        try:
            await wait_until_async(lambda: log.ready == 1)
            process = supervisor.replicas[0].process
            assert process is not None
            os.kill(process.pid, signal.SIGSTOP)
            monkeypatch.setattr(ipc_protocol, "BACKEND_SILENCE_SECONDS", 0.5)
            await wait_until_async(lambda: log.reasons)
            assert "was unresponsive" in log.reasons[0]
            assert not supervisor.ready
            await wait_until_async(lambda: log.ready == 2)
            spec = RequestSpec(id="a", prompt=[1], max_tokens=2, decoding=DecodingParams())
            supervisor.send(0, ipc_protocol.Add.of([spec]))
            await wait_until_async(lambda: log.outputs)
            assert log.outputs[0].finish_reason == "length"
        finally:
            await supervisor.stop("done")
        assert failures == []

    asyncio.run(run())


def test_a_failed_load_is_reported_once_and_not_repeated(folder: Path) -> None:
    async def run() -> None:
        log, failures = Log(), []
        supervisor = supervise(folder, log, failures, accept_threshold=0.0)  # the fake engine refuses it
        await supervisor.start()
        await wait_until_async(lambda: failures)
        await wait_until_async(supervisor.tasks[0].done)  # no other backend is started
        await supervisor.stop("done")
        assert failures == ["tensor 'model.norm.weight' is missing"]
        assert supervisor.replicas[0].starts == 1

    asyncio.run(run())


def test_a_reason_that_arrives_after_the_end_of_its_process_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, calls = Endpoint.read, 0

    async def run() -> None:
        log, failures = Log(), []
        supervisor = supervise(folder, log, failures, accept_threshold=0.0)

        def read_later(endpoint: Endpoint) -> None:
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
        await wait_until_async(lambda: failures)
        await supervisor.stop("done")
        assert failures == ["tensor 'model.norm.weight' is missing"]

    asyncio.run(run())


def test_a_process_that_exits_without_a_reason_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "EXIT_REASON_SECONDS", 0.05)

    async def run() -> None:
        failures: list[str] = []
        supervisor = supervise(folder, Log(), failures, (sys.executable, "-c", "raise SystemExit(1)"))
        await supervisor.start()
        await wait_until_async(lambda: failures)
        await supervisor.stop("done")
        (reason,) = failures
        assert "exit code 1 while it loaded the model" in reason

    asyncio.run(run())


def test_a_process_that_cannot_be_started_ends_the_start(folder: Path) -> None:
    async def run() -> None:
        failures: list[str] = []
        supervisor = supervise(folder, Log(), failures, ("/nowhere/program",))
        await supervisor.start()
        await wait_until_async(supervisor.tasks[0].done)
        await supervisor.stop("done")
        (reason,) = failures
        assert "the backend process could not be started" in reason

    asyncio.run(run())


def test_messages_of_unknown_and_of_ended_processes_are_ignored(folder: Path) -> None:
    import zmq

    async def run() -> None:
        log, failures = Log(), []
        supervisor = supervise(folder, log, failures)
        await supervisor.start()
        await wait_until_async(lambda: log.ready == 1)
        outputs = ipc_protocol.encode(ipc_protocol.Outputs([EngineOutput(id="x", nfe=1)]))
        with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
            socket.connect(supervisor.event_addr)
            for frames in ([b"backend-0.0", outputs], [b"backend-0.1", b"\xff"], [b"one"], [b"a", b"b", b"c"]):
                socket.send_multipart(frames)
            socket.send_multipart([b"backend-0.1", outputs])
            await wait_until_async(lambda: log.outputs)
        await supervisor.stop("done")
        assert [output.id for output in log.outputs] == ["x"]
        assert failures == []

    asyncio.run(run())


def test_a_stopped_backend_is_not_ready_until_it_runs_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipc_protocol, "PING_SECONDS", 0.2)

    async def run() -> None:
        log, failures = Log(), []
        supervisor = supervise(folder, log, failures)
        await supervisor.start()
        try:
            await wait_until_async(lambda: supervisor.ready == [0])
            process = supervisor.replicas[0].process
            assert process is not None
            os.kill(process.pid, signal.SIGSTOP)
            monkeypatch.setattr(ipc_protocol, "UNRESPONSIVE_SECONDS", 3.0)
            await wait_until_async(lambda: not supervisor.ready)
            os.kill(process.pid, signal.SIGCONT)
            await wait_until_async(lambda: supervisor.ready == [0])
            assert supervisor.replicas[0].process is process
            assert log.reasons == []
        finally:
            await supervisor.stop("done")

    asyncio.run(run())


def test_a_backend_whose_engine_is_busy_for_long_stays_ready(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As during compilation or graph capture, the engine's thread sends nothing, and another sends heartbeats."""
    blocked = tmp_path / "blocked"
    blocked.touch()
    monkeypatch.setenv("TEST_BLOCKED", str(blocked))
    command = (sys.executable, "-m", "tests.server.blocked_backend")

    async def run() -> None:
        log, failures = Log(), []
        supervisor = supervise(folder, log, failures, command)
        await supervisor.start()
        try:
            await wait_until_async(lambda: supervisor.ready == [0])
            spec = RequestSpec(id="a", prompt=[1], max_tokens=2, decoding=DecodingParams())
            supervisor.send(0, ipc_protocol.Add.of([spec]))
            replica = supervisor.replicas[0]
            await wait_until_async(lambda: replica.last_beat - replica.last_message > 3.0)
            assert supervisor.ready == [0]
            blocked.unlink()
            await wait_until_async(lambda: log.outputs and log.outputs[-1].finish_reason)
        finally:
            await supervisor.stop("done")

    asyncio.run(run())
