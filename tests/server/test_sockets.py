"""Tests of the sockets between frontend processes, their parent and the backends."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from runtime.request.engine_messages import EngineOutput, RequestSpec
from runtime.request.resolve import expand_choices
from runtime.server.engine_client import ipc_protocol
from runtime.server.engine_client.ipc_protocol import (
    Abort,
    Add,
    Call,
    Fatal,
    LoadAdapter,
    Outputs,
    Ping,
    ReleaseFrontend,
    Stop,
    UnloadAdapter,
    encode,
)
from runtime.server.engine_client.ipc_sockets import Endpoint, connect
from runtime.server.engine_process.channel import EngineChannel, FrontendGone, FrontendRouter
from tests.on_loop import on_loop
from tests.server.harness import ROOT
from tests.wait import wait_until, wait_until_async

ARRIVAL_MS = 60_000

FIRST, SECOND = "frontend-0.1", "frontend-1.1"


def spec(id: str) -> RequestSpec:
    return RequestSpec(id=id, prompt=[1, 2], max_tokens=4)


class Clients:
    """A router, and the sockets of frontend processes."""

    def __init__(self, directory: Path) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.addr = f"ipc://{directory}/router"
        self.router = FrontendRouter(self.context, self.addr)
        self.sockets = {name: self.connect(name) for name in (FIRST, SECOND)}

    def connect(self, name: str) -> zmq.Socket[bytes]:
        socket = self.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, name.encode())
        socket.connect(self.addr)
        return socket

    def send(self, name: str, *commands: Any) -> None:
        for command in commands:
            self.sockets[name].send(encode(command))

    def receive(self, count: int) -> list[Any]:
        found: list[Any] = []

        def received() -> bool:
            found.extend(self.router.receive())
            return len(found) >= count

        wait_until(received)
        return found

    def outputs(self, name: str) -> list[str]:
        """Returns the ids of the outputs in the next message."""
        event = ipc_protocol.decode_event(self.sockets[name].recv())
        assert isinstance(event, Outputs)
        return [output.id for output in event.outputs]


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clients]:
    clients = Clients(tmp_path)
    yield clients
    clients.context.destroy(0)


def output(id: str, reason: Any = None) -> EngineOutput:
    return EngineOutput(id=id, nfe=1, finish_reason=reason)


def test_outputs_go_to_the_process_of_their_request(clients: Clients) -> None:
    clients.send(FIRST, Add.of([spec("a"), spec("b")]))
    clients.send(SECOND, Add.of([spec("c")]))
    clients.receive(2)
    clients.router.send([output("a"), output("c"), output("b", "stop"), output("unknown")])
    assert (clients.outputs(FIRST), clients.outputs(SECOND)) == (["a", "b"], ["c"])
    assert clients.router.owners.keys() == {"a", "c"}


def test_choices_with_one_prompt_have_their_own_outputs(clients: Clients) -> None:
    specs = expand_choices(spec("x"), 3)
    clients.send(SECOND, Add.of(specs))
    (add,) = clients.receive(1)
    assert list(add.ids()) == [one.id for one in specs] == [one.id for one in add.requests()]
    clients.router.send([output(one.id, "length") for one in specs])
    assert clients.outputs(SECOND) == [one.id for one in specs]
    assert not clients.router.owners


def test_an_aborted_request_has_no_further_outputs(clients: Clients) -> None:
    clients.send(FIRST, Add.of([spec("a"), spec("b")]), Abort(["a"]))
    assert [type(command) for command in clients.receive(2)] == [Add, Abort]
    clients.router.send([output("a"), output("b")])
    assert clients.outputs(FIRST) == ["b"]


def test_requests_of_a_process_that_has_exited_end(clients: Clients) -> None:
    clients.send(FIRST, Add.of([spec("a")]))
    clients.send(SECOND, Add.of([spec("b")]))
    clients.receive(2)
    assert clients.router.release(FIRST) == ["a"]
    clients.send(FIRST, Add.of([spec("too late")]))
    clients.send(SECOND, Add.of([spec("c")]))
    wait_until(lambda: "c" in {id for command in clients.router.receive() for id in command.ids()})
    assert clients.router.owners == {"b": SECOND.encode(), "c": SECOND.encode()}


class Backend:
    """The channel of a backend, and the socket of its parent."""

    def __init__(self, directory: Path, context: zmq.Context[Any], router: str | None = None) -> None:
        commands, events = (f"ipc://{directory}/{name}" for name in ("commands", "events"))
        self.parent = context.socket(zmq.ROUTER)
        self.parent.bind(commands)
        self.channel = EngineChannel("backend-0", commands, events, router)
        self.channel.send_hello()
        self.name, _ = self.parent.recv_multipart()

    def send(self, command: Any) -> None:
        """Sends a command of the parent, and waits for its arrival."""
        self.parent.send_multipart([self.name, encode(command)])
        assert self.channel.commands.poll(ARRIVAL_MS)


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Yields the descriptor whose end tells the backend that its parent has ended."""
    inside, outside = os.pipe()
    with open(inside, "rb") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield outside
    with contextlib.suppress(OSError):
        os.close(outside)


def test_adapters_are_loaded_before_requests_and_unloaded_after_them(
    tmp_path: Path, outside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    addr = f"ipc://{tmp_path}/router"
    with zmq.Context() as context, context.socket(zmq.DEALER) as frontend:
        backend = Backend(tmp_path, context, addr)
        with contextlib.closing(backend.channel) as channel, backend.parent:
            frontend.setsockopt(zmq.IDENTITY, FIRST.encode())
            frontend.connect(addr)
            frontend.send(encode(Add.of([spec("a")])))
            assert channel.router is not None
            assert channel.router.socket.poll(ARRIVAL_MS)
            with monkeypatch.context() as patch:  # three commands of the parent have arrived too
                commands = [Call(0, UnloadAdapter("x")), Call(1, LoadAdapter("y", "uri")), Ping()]
                patch.setattr(channel, "_receive_commands", lambda: iter(commands))
                unload, load, ping = commands
                assert list(channel.receive(0)) == [load, ping, Add.of([spec("a")]), unload]
            backend.send(ReleaseFrontend(FIRST))
            assert list(channel.receive(0)) == [Abort(["a"])]


def test_commands_are_received_until_the_parent_ends(tmp_path: Path, outside: int) -> None:
    with zmq.Context() as context:
        backend = Backend(tmp_path, context)
        with contextlib.closing(backend.channel) as channel, backend.parent:
            assert not list(channel.receive(0))
            backend.send(Ping())
            assert list(channel.receive(0)) == [Ping()]
            assert not list(channel.receive(0))
            backend.send(Stop("enough"))
            with pytest.raises(FrontendGone, match="enough"):
                list(channel.receive(0))
            os.close(outside)
            with pytest.raises(FrontendGone):
                list(channel.receive(1))


REPORTS = """
import sys, threading, time
from runtime.server.engine_process import channel

commands, events, channel.REASON_SECONDS = sys.argv[1], sys.argv[2], float(sys.argv[3])
backend = channel.EngineChannel("backend-0", commands, events)
threading.Thread(target=backend.fail, args=("a rank is gone",)).start()
while True:
    time.sleep(3600)
"""


def run_failing_backend(commands: str, events: str, reason_seconds: float) -> int:
    """Runs a backend whose thread reports a failure while its main thread is blocked, and returns its exit code."""
    command = [sys.executable, "-c", REPORTS, commands, events, str(reason_seconds)]
    return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode


def test_a_failure_that_a_thread_reports_reaches_the_frontend(tmp_path: Path) -> None:
    commands, events = (f"ipc://{tmp_path}/{name}" for name in ("commands", "events"))
    with zmq.Context() as context, context.socket(zmq.PULL) as frontend:
        frontend.bind(events)
        assert run_failing_backend(commands, events, 3600) == 1
        name, event = frontend.recv_multipart()
    assert (name, ipc_protocol.decode_event(event)) == (b"backend-0", Fatal("a rank is gone"))


def test_a_failing_backend_exits_without_a_frontend(tmp_path: Path) -> None:
    assert run_failing_backend(f"ipc://{tmp_path}/commands", f"ipc://{tmp_path}/events", 0.1) == 1


@on_loop
async def test_messages_after_one_whose_handler_raised_are_handled(tmp_path: Path) -> None:
    received: list[bytes] = []
    errors: list[Any] = []
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        addr = f"ipc://{tmp_path}/socket"
        router.bind(addr)
        sender = connect(context, "a", addr)
        for message in (b"1", b"raises", b"2", b"3"):
            sender.send(message)
        assert router.poll(60_000)

        def on_message(frames: list[bytes]) -> None:
            received.append(frames[-1])
            if frames[-1] == b"raises":
                raise ValueError("of the handler")

        asyncio.get_running_loop().set_exception_handler(lambda _, of: errors.append(of["exception"]))
        with contextlib.closing(sender), contextlib.closing(Endpoint(router, on_message)):
            await wait_until_async(lambda: len(received) == 4)
    assert received == [b"1", b"raises", b"2", b"3"]
    assert [str(error) for error in errors] == ["of the handler"]
