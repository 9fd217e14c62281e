"""Tests of invalid messages on the sockets between frontend and backends, and of what backends inherit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from runtime.config import EngineConfig, ServerConfig
from runtime.request.engine_messages import DecodingParams, EngineOutput, RequestSpec
from runtime.server.engine_client import ipc_protocol, ipc_sockets
from runtime.server.engine_client.supervisor import Supervisor
from tests.server.harness import FAKE, ROOT, serving
from tests.server.test_supervisor import BACKEND, Log
from tests.wait import wait_until_async

FIRST = b"backend-0.1"
ANSWER = RequestSpec(id="a", prompt=[1], max_tokens=2, decoding=DecodingParams())


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


@contextlib.asynccontextmanager
async def supervised(directory: Path, log: Log) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(ServerConfig(engine=EngineConfig()), directory, lambda _: None, BACKEND)
    supervisor.observer = log
    await supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.stop("done")


async def served(supervisor: Supervisor, log: Log) -> None:
    supervisor.send(0, ipc_protocol.Add.of([ANSWER]))
    await wait_until_async(lambda: any(output.id == "a" and output.finish_reason for output in log.outputs))


def nested(depth: int) -> bytes:
    """Returns an event with a field of `depth` nested lists, which a decoder must skip."""
    return b"\x82\xa4type\xa7Outputs\xa1x" + b"\x91" * depth + b"\xc0"


def test_a_message_that_cannot_be_decoded_is_one_log_line(
    tmp_path: Path, stranger: Stranger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)

    async def run() -> None:
        log = Log()
        async with supervised(tmp_path, log) as supervisor:
            await wait_until_async(lambda: log.ready == 1)
            socket = stranger.connect(zmq.PUSH, supervisor.event_addr)
            for data in (nested(100_000), b"\x91" * 100_000, b"", b"\xff"):
                socket.send_multipart([FIRST, data])
            for frames in ([b"one"], [b"a", b"b", b"c"], [FIRST, b"", b""]):
                socket.send_multipart(frames)
            socket.send_multipart([FIRST, forged("x")])
            await wait_until_async(lambda: log.outputs)
            assert not [task for task in supervisor.tasks if task.done()]
            with pytest.raises(ValueError, match="not a hello"):
                ipc_protocol.decode_hello(nested(100_000))

    with caplog.at_level(logging.DEBUG):
        asyncio.run(run())
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 4
    for record in warnings:
        assert not record.exc_info
        assert "backend-0.1: ignoring an invalid message" in record.getMessage()
        assert "\n" not in record.getMessage()
        assert len(record.getMessage()) < 400


def test_messages_larger_than_any_backend_sends_are_refused(
    tmp_path: Path, stranger: Stranger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(ipc_sockets.MAX_FRAME_BYTES, zmq.PULL, 64 << 10)

    async def run() -> None:
        log = Log()
        async with supervised(tmp_path, log) as supervisor:
            await wait_until_async(lambda: log.ready == 1)
            large, small = (stranger.connect(zmq.PUSH, supervisor.event_addr) for _ in range(2))
            large.send_multipart([FIRST, b"x" * (64 << 10) + b"x"])
            await stranger.until(large, LOST)
            assert not caplog.records
            small.send_multipart([FIRST, b"x" * (63 << 10)])
            await wait_until_async(lambda: caplog.records)
            await served(supervisor, log)

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())


def test_backends_do_not_get_the_servers_secrets(checkpoint: Path) -> None:
    secrets = {"UNMASK_API_KEY": "key-of-the-server-0123456789", "HF_TOKEN": "hf_0123456789"}
    with serving("--model", str(checkpoint), module=FAKE, env=secrets) as server:
        (backend,) = server.backends()
        found = Path(f"/proc/{backend.pid}/environ").read_text()
        assert not [value for value in secrets.values() if value in found]
        assert "UNMASK_API_KEY" not in found
        assert "PATH=" in found
        arguments = psutil.Process(backend.pid).cmdline()
        *_, name = arguments[: arguments.index("--command-addr")]
        assert name == "backend-0.1"
        assert all(len(argument) < 40 or "/" in argument for argument in arguments)  # a key has 40 characters


@pytest.mark.parametrize(("model", "passed"), [("hf://org/name", True), ("/models/x", False), (None, False)])
def test_the_hubs_token_is_passed_only_where_a_model_is_fetched(
    model: str | None, passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runtime.server.env import backend_environment

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("UNMASK_API_KEY", "secret")
    found = backend_environment(model)
    assert ("HF_TOKEN" in found) is passed
    assert not [name for name in found if name.startswith("UNMASK_")]
