"""Tests of a backend's socket for several frontend processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from runtime.request.engine_messages import EngineOutput, RequestSpec
from runtime.server.engine_client import ipc_protocol
from runtime.server.engine_client.ipc_protocol import (
    Abort,
    Add,
    Call,
    LoadAdapter,
    Outputs,
    Ping,
    ReleaseFrontend,
    UnloadAdapter,
    encode,
)
from runtime.server.engine_process.channel import EngineChannel, FrontendRouter
from tests.wait import wait_until

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
    from runtime.request.resolve import expand_choices

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


def test_adapters_are_loaded_before_requests_and_unloaded_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os
    import sys

    inside, outside = os.pipe()
    commands, events, addr = (f"ipc://{tmp_path}/{name}" for name in ("commands", "events", "router"))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as parent, open(inside, "rb") as stdin:
        parent.bind(commands)
        monkeypatch.setattr(sys, "stdin", stdin)
        channel = EngineChannel("backend-0", commands, events, addr)
        try:
            channel.send_hello()
            name, _ = parent.recv_multipart()
            with context.socket(zmq.DEALER) as frontend:
                frontend.setsockopt(zmq.IDENTITY, FIRST.encode())
                frontend.connect(addr)
                frontend.send(encode(Add.of([spec("a")])))
                assert channel.router is not None
                wait_until(channel.has_command)
                with monkeypatch.context() as patch:  # three commands of the parent have arrived too
                    commands_of_parent = [Call(0, UnloadAdapter("x")), Call(1, LoadAdapter("y", "uri")), Ping()]
                    patch.setattr(channel, "_receive_commands", lambda: iter(commands_of_parent))
                    unload, load, ping = commands_of_parent
                    assert list(channel.receive(0)) == [load, ping, Add.of([spec("a")]), unload]
                parent.send_multipart([name, encode(ReleaseFrontend(FIRST))])
                wait_until(channel.has_command)
                assert list(channel.receive(0)) == [Abort(["a"])]
        finally:
            channel.close()
            os.close(outside)
