"""Strangers at the sockets between frontend and backends: over tcp nobody without a key is heard, or told."""

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

from e2e.cluster.process import free_ports
from runtime.config import EngineConfig, ServerConfig
from runtime.errors import ConfigError
from runtime.request.engine_messages import DecodingParams, EngineOutput, RequestSpec
from runtime.server.engine_client import ipc_protocol, ipc_sockets
from runtime.server.engine_client import supervisor as supervisors
from runtime.server.engine_client.supervisor import Supervisor
from tests.server.harness import FAKE, ROOT, serving
from tests.server.test_supervisor import BACKEND, Log
from tests.wait import wait_until_async

FIRST, NEXT = b"backend-0.1", b"backend-0.2"
HELLO = ipc_protocol.encode(ipc_protocol.Hello(ipc_protocol.VERSION, 1))
ANSWER = RequestSpec(id="a", prompt=[1], max_tokens=2, decoding=DecodingParams())


def forged(id: str) -> bytes:
    return ipc_protocol.encode(ipc_protocol.Outputs([EngineOutput(id=id, nfe=1)]))


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.chdir(ROOT)
    one, two = free_ports(2)
    return f"tcp://127.0.0.1:{one}", f"tcp://127.0.0.1:{two}"


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

    def connect(self, kind: int, addr: str, name: bytes = b"", **keys: bytes) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        if name:
            socket.setsockopt(zmq.IDENTITY, name)
        for option, key in keys.items():
            socket.setsockopt(getattr(zmq, option), key)
        self.monitors[socket] = socket.get_monitor_socket()
        socket.connect(addr)
        return socket

    def try_send(self, socket: zmq.Socket[bytes], *frames: bytes) -> None:
        """Sends if the connection still exists.

        A handshake that fails takes the connection's queue with it. A socket without queues blocks in `send` for good.
        """
        with contextlib.suppress(zmq.Again):
            socket.send_multipart(frames, zmq.NOBLOCK)

    async def until(self, socket: zmq.Socket[bytes], events: int) -> None:
        """Waits until one of these has become of the socket's connection."""

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
async def supervised(addresses: tuple[str, str], log: Log, before: Any = None) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(ServerConfig(engine=EngineConfig()), log, *addresses, lambda _: None, BACKEND)
    if before is not None:
        await before(supervisor)
    await supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.stop("done")


def got(socket: zmq.Socket[bytes]) -> bool:
    return bool(socket.poll(0, zmq.POLLIN))


async def served(supervisor: Supervisor, log: Log) -> None:
    supervisor.send(0, ipc_protocol.Add([ANSWER]))
    await wait_until_async(lambda: any(output.id == "a" and output.finish_reason for output in log.outputs))


def test_who_takes_a_backends_name_first_gets_nothing(addresses: tuple[str, str], stranger: Stranger) -> None:
    """Neither under the name of the backend that starts nor under the next one's."""

    async def run() -> None:
        log, squatters = Log(), []

        async def squat(_: Supervisor) -> None:
            squatters.extend(stranger.connect(zmq.DEALER, addresses[0], name) for name in (FIRST, NEXT))
            for squatter in squatters:
                stranger.try_send(squatter, HELLO)
                await stranger.until(squatter, zmq.EVENT_CONNECTED)

        async with supervised(addresses, log, squat) as supervisor:
            await wait_until_async(lambda: log.ready == 1 or any(map(got, squatters)))
            assert not any(map(got, squatters)), "the configuration went to a stranger"
            await served(supervisor, log)
            process = supervisor.replicas[0].process
            assert process is not None
            process.kill()
            await wait_until_async(lambda: log.ready == 2 or any(map(got, squatters)))
            log.outputs.clear()
            await served(supervisor, log)
            assert not any(map(got, squatters)), "a prompt went to a stranger"

    asyncio.run(run())


def test_a_key_of_ones_own_opens_nothing(addresses: tuple[str, str], stranger: Stranger) -> None:
    """Even with the frontend's public key, which is no secret."""

    async def run() -> None:
        log, squatters = Log(), []

        async def squat(supervisor: Supervisor) -> None:
            public, secret = zmq.curve_keypair()
            keys = {
                "CURVE_SERVERKEY": supervisor.authenticator.public,
                "CURVE_PUBLICKEY": public,
                "CURVE_SECRETKEY": secret,
            }
            squatters.append(stranger.connect(zmq.DEALER, addresses[0], FIRST, **keys))
            stranger.try_send(squatters[0], HELLO)
            await stranger.until(squatters[0], zmq.EVENT_CONNECTED)

        async with supervised(addresses, log, squat) as supervisor:
            await wait_until_async(lambda: log.ready == 1)
            await served(supervisor, log)
            assert not got(squatters[0])

    asyncio.run(run())


def test_a_strangers_answers_are_not_heard(addresses: tuple[str, str], stranger: Stranger) -> None:
    async def run() -> None:
        log = Log()
        async with supervised(addresses, log) as supervisor:
            await wait_until_async(lambda: log.ready == 1)
            socket = stranger.connect(zmq.PUSH, addresses[1])
            stranger.try_send(socket, FIRST, forged("forged"))
            await served(supervisor, log)
            await stranger.until(socket, LOST)
            await served(supervisor, log)
            assert {output.id for output in log.outputs} == {"a"}

    asyncio.run(run())


def test_a_backends_key_speaks_for_no_other_backend(
    addresses: tuple[str, str], stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[Any] = []
    receive = supervisors.receive

    def noted(*args: Any) -> Any:
        received.append(receive(*args))
        return received[-1]

    monkeypatch.setattr(supervisors, "receive", noted)

    async def run() -> None:
        log = Log()
        async with supervised(addresses, log) as supervisor:
            await wait_until_async(lambda: log.ready == 1)

            def push(name: str) -> zmq.Socket[bytes]:
                told = supervisor.authenticator.issue(name)
                keys = {"SERVERKEY": told.server_public, "PUBLICKEY": told.public, "SECRETKEY": told.secret}
                options = {f"CURVE_{option}": key.encode() for option, key in keys.items()}
                return stranger.connect(zmq.PUSH, addresses[1], **options)

            other = push("backend-0.7")
            other.send_multipart([FIRST, forged("forged")])
            other.send_multipart([b"backend-0.7", forged("not alive")])
            own = push(FIRST.decode())
            own.send_multipart([FIRST, forged("true")])
            await wait_until_async(lambda: log.outputs)
            await wait_until_async(lambda: None in received, "what comes under another's name")
            await wait_until_async(lambda: any(m and m[0] == b"backend-0.7" for m in received), "what is not alive")
            assert [output.id for output in log.outputs] == ["true"]
            process = supervisor.replicas[0].process
            assert process is not None
            process.kill()
            await wait_until_async(lambda: log.ready == 2)
            assert FIRST.decode() not in supervisor.authenticator.names.values()  # its keys end with it

    asyncio.run(run())


def nested(depth: int) -> bytes:
    """An event that a decoder must walk down `depth` lists to read past."""
    return b"\x82\xa4type\xa7Outputs\xa1x" + b"\x91" * depth + b"\xc0"


def test_what_cannot_be_decoded_is_one_line(
    tmp_path: Path, stranger: Stranger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    addresses = (f"ipc://{tmp_path}/c", f"ipc://{tmp_path}/e")

    async def run() -> None:
        log = Log()
        async with supervised(addresses, log) as supervisor:
            await wait_until_async(lambda: log.ready == 1)
            socket = stranger.connect(zmq.PUSH, addresses[1])
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
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 4
    for record in told:
        assert not record.exc_info
        assert "backend-0.1: ignoring an invalid message" in record.getMessage()
        assert "\n" not in record.getMessage()
        assert len(record.getMessage()) < 400


def test_larger_messages_than_any_backend_sends_are_not_taken(
    tmp_path: Path, stranger: Stranger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(ipc_sockets.LIMITS, zmq.PULL, 64 << 10)
    addresses = (f"ipc://{tmp_path}/c", f"ipc://{tmp_path}/e")

    async def run() -> None:
        log = Log()
        async with supervised(addresses, log) as supervisor:
            await wait_until_async(lambda: log.ready == 1)
            large, small = (stranger.connect(zmq.PUSH, addresses[1]) for _ in range(2))
            large.send_multipart([FIRST, b"x" * (64 << 10) + b"x"])
            await stranger.until(large, LOST)
            assert not caplog.records
            small.send_multipart([FIRST, b"x" * (63 << 10)])
            await wait_until_async(lambda: caplog.records)
            await served(supervisor, log)

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())


def test_without_curve_tcp_is_refused(addresses: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zmq, "has", lambda capability: False)
    with pytest.raises(ConfigError, match=r"--zmq-command-addr: tcp://\S+ needs a libzmq with CURVE"):
        Supervisor(ServerConfig(), Log(), *addresses, lambda _: None, BACKEND)


def test_backends_are_not_told_the_servers_secrets(checkpoint: Path, addresses: tuple[str, str]) -> None:
    secrets = {"UNMASK_API_KEY": "key-of-the-server-0123456789", "HF_TOKEN": "hf_0123456789"}
    flags = ("--zmq-command-addr", addresses[0], "--zmq-event-addr", addresses[1])
    with serving("--model", str(checkpoint), *flags, module=FAKE, env=secrets) as server:
        (backend,) = server.backends()
        found = Path(f"/proc/{backend.pid}/environ").read_text()
        assert not [value for value in secrets.values() if value in found]
        assert "UNMASK_API_KEY" not in found
        assert "PATH=" in found
        arguments = psutil.Process(backend.pid).cmdline()
        *_, name = arguments[: arguments.index("--command-addr")]
        assert name == "backend-0.1"
        assert all(len(argument) < 40 or "/" in argument for argument in arguments)  # a key has 40 characters


@pytest.mark.parametrize(("model", "kept"), [("hf://org/name", True), ("/models/x", False), (None, False)])
def test_the_hubs_token_goes_where_a_model_is_fetched(
    model: str | None, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runtime.server.env import backend_environment

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("UNMASK_API_KEY", "secret")
    found = backend_environment(model)
    assert ("HF_TOKEN" in found) is kept
    assert not [name for name in found if name.startswith("UNMASK_")]
