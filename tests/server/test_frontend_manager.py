"""Tests of the parent of frontend processes: which processes it replaces, and how it responds to messages."""

import asyncio
import contextlib
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.request.engine_messages import RequestSpec
from runtime.server.engine_client import ipc_protocol
from runtime.server.engine_client.adapter_registry import AdapterEntry
from runtime.server.engine_client.client import LocalEngineClient
from runtime.server.engine_client.ipc_protocol import Fatal, Heartbeat, Hello, Loading
from runtime.server.engine_client.supervisor import pids
from runtime.server.frontend_processes import manager as managers
from runtime.server.frontend_processes.engine_client import FrontendEngineClient
from runtime.server.frontend_processes.manager import Frontend, FrontendProcessManager
from runtime.server.frontend_processes.metrics import FrontendMetrics
from runtime.server.frontend_processes.process import FrontendProcess
from runtime.server.frontend_processes.protocol import (
    EngineState,
    FrontendConfig,
    Loaded,
    RpcRequest,
    RpcResponse,
    StateAck,
)
from runtime.server.metrics import Metrics, RequestMetrics
from tests.on_loop import on_loop
from tests.request.test_sampling_params import INFO
from tests.wait import TIMEOUT, wait_until_async

HANGS = (sys.executable, "-c", "import time; time.sleep(3600)")  # sends no message
CONFIG = ServerConfig(frontend_processes=2)


class Parent:
    """A manager whose backends never finish loading, and the messages that it sends."""

    def __init__(self, directory: Path, listener: socket.socket) -> None:
        metrics = FrontendMetrics(directory / "metrics")
        replica = SimpleNamespace(index=0, state="starting", loading=Loading("start", 0, 0), exit_reason="")
        supervisor = SimpleNamespace(
            replicas=[replica], ready=[], send=lambda index, message: None, socket_directory=directory
        )
        self.failures: list[str] = []
        self.client = LocalEngineClient(CONFIG, RequestMetrics(), Metrics("m", metrics), cast(Any, supervisor))
        self.manager = FrontendProcessManager(self.client, listener, metrics, self.failures.append)
        self.sent: list[tuple[int, Any]] = []
        self.manager._send = lambda frontend, message: self.sent.append((frontend.index, message))  # type: ignore[method-assign]

    def receive(self, index: int, message: Any) -> None:
        self.manager._on_message(self.manager.frontends[index], message)


@contextlib.asynccontextmanager
async def parent() -> AsyncIterator[Parent]:
    with tempfile.TemporaryDirectory() as directory, socket.create_server(("127.0.0.1", 0)) as listener:
        made = Parent(Path(directory), listener)
        try:
            yield made
        finally:
            made.manager.endpoint.close()
            for task in made.manager.tasks:
                task.cancel()


def running(index: int = 0) -> Frontend:
    frontend = Frontend(index)
    frontend.process = cast(Any, SimpleNamespace(pid=2**22 + 1, returncode=None))
    return frontend


def test_a_slow_start_may_take_longer_than_the_limit_of_silence() -> None:
    assert managers.SILENCE_SECONDS < managers.START_SECONDS
    frontend = running()
    between = (managers.SILENCE_SECONDS + managers.START_SECONDS) / 2
    frontend.started -= between
    frontend.last_message -= between
    assert not frontend.hangs  # it still imports modules
    frontend.connected = True
    assert frontend.hangs
    frontend.last_message += between
    frontend.serving_since = frontend.started
    frontend.started -= managers.START_SECONDS
    assert not frontend.hangs


def test_a_process_that_never_listens_hangs_despite_heartbeats() -> None:
    frontend = running()
    frontend.connected = True
    frontend.started -= managers.START_SECONDS + 1
    assert frontend.hangs


@on_loop
async def test_a_new_process_receives_configuration_and_state() -> None:
    async with parent() as made:
        made.receive(1, Hello(ipc_protocol.VERSION, 1))
        assert [index for index, _ in made.sent] == [1, 1]
        configured, state = (message for _, message in made.sent)
        assert configured == FrontendConfig(CONFIG, 1, replaces=False)
        assert isinstance(state, EngineState)
        for index in range(2):
            made.receive(index, Loaded())
        made.receive(0, Hello(ipc_protocol.VERSION, 1))
        assert FrontendConfig(CONFIG, 0, replaces=True) in [message for _, message in made.sent]


@on_loop
async def test_a_failure_of_the_parent_is_answered() -> None:
    """Without a response the client would wait forever."""
    async with asyncio.timeout(TIMEOUT), parent() as made:
        made.client.adapters.load = None  # type: ignore[assignment, method-assign]
        made.receive(0, RpcRequest(7, "load_adapter", ["name", "demo://roman"]))
        await wait_until_async(lambda: made.sent)
        ((index, response),) = made.sent
        assert isinstance(response, RpcResponse)
        assert (index, response.number) == (0, 7)
        assert response.error["status"] == 500
        assert "load_adapter failed" in response.error["message"]


@on_loop
async def test_a_change_is_complete_when_every_process_has_acknowledged_it() -> None:
    async with asyncio.timeout(TIMEOUT), parent() as made:
        for index in range(2):
            made.receive(index, Hello(ipc_protocol.VERSION, 1))
        made.client.adapters.entries["a"] = AdapterEntry("uri", "route", "ready")
        waiting = asyncio.create_task(made.manager.wait_acknowledged())
        await asyncio.sleep(0)
        assert sorted(index for index, m in made.sent if isinstance(m, EngineState)) == [0, 0, 1, 1]
        for index in (0, 0, 1):  # one acknowledgment per state
            made.receive(index, StateAck())
        made.receive(1, Heartbeat())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        made.manager._release(made.manager.frontends[1])  # a process that exits need not acknowledge
        await waiting


@on_loop
async def test_a_process_of_another_build_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with parent() as made:
        killed: list[int] = []
        monkeypatch.setattr(Frontend, "kill", lambda self: killed.append(self.index))
        made.receive(1, Hello(ipc_protocol.VERSION - 1, 1))
        frontend = made.manager.frontends[1]
        assert killed == [1]
        assert not frontend.connected
        assert made.sent == []
        assert "install one version of unmask" in (frontend.fatal or "")


@pytest.mark.parametrize("loaded", [False, True])
@on_loop
async def test_a_state_that_a_process_cannot_apply_ends_the_change_with_an_error(
    monkeypatch: pytest.MonkeyPatch, loaded: bool
) -> None:
    """Checks that the process is replaced, also while other processes still load."""
    async with asyncio.timeout(TIMEOUT), parent() as made:
        killed: list[int] = []
        monkeypatch.setattr(Frontend, "kill", lambda self: killed.append(self.index))
        for index in range(2):
            made.receive(index, Hello(ipc_protocol.VERSION, 1))
            if loaded:
                made.receive(index, Loaded())
        made.client.adapters.entries["a"] = AdapterEntry("uri", "route", "ready")
        waiting = asyncio.create_task(made.manager.wait_acknowledged())
        await asyncio.sleep(0)
        for frontend in made.manager.frontends:
            for _ in range(frontend.num_sent - 1):
                made.receive(frontend.index, StateAck())
        assert not waiting.done()
        made.receive(0, StateAck())
        made.receive(1, StateAck("KeyError: 'x'"))
        with pytest.raises(RequestError, match="KeyError: 'x'; retry") as error:
            await waiting
        assert error.value.status == 500
        assert killed == [1]
        assert not made.manager.ending


def test_a_process_reports_a_state_that_it_cannot_apply() -> None:
    """Without a report the parent would wait for the acknowledgment."""
    process = FrontendProcess("frontend-0.1", cast(Any, None))
    sent: list[Any] = []
    process._send = sent.append  # type: ignore[method-assign]

    class Broken:
        def on_state(self, state: Any) -> None:
            raise KeyError("x")

    process.engine_client = cast(Any, Broken())
    state = EngineState(None, [], [], ("start", 0, 0), {}, True, True)
    process._on_message([ipc_protocol.encode(state)])
    (acknowledged,) = sent
    assert "KeyError: 'x'" in acknowledged.error


@on_loop
async def test_earlier_requests_are_sent_before_a_state_is_acknowledged() -> None:
    """Earlier requests may name an adapter that is unloaded after the acknowledgment."""
    client = FrontendEngineClient(CONFIG, RequestMetrics(), lambda message: None, "frontend-0.1", 0)
    sent: list[Any] = []
    client.send = lambda index, message: sent.append(message)  # type: ignore[method-assign]
    ready = EngineState(INFO, [], [0], ("start", 0, 0), {"a": AdapterEntry("uri", "route", "ready")}, True, True)
    client.on_state(ready)
    client.submit([RequestSpec(id="r", prompt=[1], max_tokens=1, adapter="a", decoding=INFO.defaults())])
    assert sent == []
    client.on_state(msgspec.structs.replace(ready, adapters={}))
    assert [list(message.ids()) for message in sent] == [["r"]]


@on_loop
async def test_a_failed_start_ends_the_server_only_until_all_could_serve() -> None:
    async with parent() as made:
        made.receive(0, Fatal("the template is invalid"))
        assert made.failures == ["the template is invalid"]
        for index in range(2):
            made.receive(index, Loaded())
        made.receive(0, Fatal("now it is too"))
        assert len(made.failures) == 1
        assert made.manager.frontends[0].fatal == "now it is too"


@pytest.mark.parametrize("ending", ["drain", "stop"])
@on_loop
async def test_processes_that_do_not_listen_yet_end_at_once(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(managers, "COMMAND", HANGS)
    async with asyncio.timeout(TIMEOUT), parent() as made:
        await made.manager.start()
        await wait_until_async(lambda: len(pids(made.manager.frontends)) == 2)
        await getattr(made.manager, ending)()
        assert not pids(made.manager.frontends)
        assert not made.failures


@on_loop
async def test_a_process_that_cannot_be_started_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(managers, "COMMAND", ("/nowhere/program",))
    async with asyncio.timeout(TIMEOUT), parent() as made:
        await made.manager.start()
        await wait_until_async(lambda: len(made.failures) == 2)
        assert all("the frontend process could not be started" in failure for failure in made.failures)
