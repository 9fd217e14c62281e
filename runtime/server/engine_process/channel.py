"""The sockets of a backend process to its frontend."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import zmq

from runtime.request.engine_messages import EngineOutput
from runtime.server.engine_client import ipc_protocol
from runtime.server.engine_client.ipc_sockets import bind_private, connect

log = logging.getLogger("unmask.backend")

UNSENT_BEATS = 4  # heartbeats kept while the frontend reads nothing
REASON_SECONDS = 2.0  # longest wait until the reason has been sent


class FrontendGone(Exception):
    """The frontend has exited."""


class FrontendRouter:
    """The socket for several frontend processes. Each receives the outputs of its own requests."""

    def __init__(self, context: zmq.Context[Any], addr: str) -> None:
        self.socket = context.socket(zmq.ROUTER)
        bind_private(self.socket, addr)
        self.owners: dict[str, bytes] = {}  # id of each live request -> name of its frontend process
        self.released: set[bytes] = set()  # names of processes that have ended

    def has_command(self) -> bool:
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def receive(self) -> Iterator[ipc_protocol.Command]:
        """Yields every command that is here."""
        while True:
            try:
                name, data = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if name in self.released:
                continue
            command = ipc_protocol.decode_command(data)
            match command:
                case ipc_protocol.Add():
                    self.owners.update(dict.fromkeys(command.ids(), name))
                case ipc_protocol.Abort(ids):
                    for id in ids:
                        self.owners.pop(id, None)
            yield command

    def send(self, outputs: list[EngineOutput]) -> None:
        by_owner: dict[bytes, list[EngineOutput]] = {}
        for output in outputs:
            owner = self.owners.get(output.id)
            if owner is None:  # aborted a moment ago
                continue
            if output.finish_reason is not None:
                del self.owners[output.id]
            by_owner.setdefault(owner, []).append(output)
        for owner, group in by_owner.items():
            self.socket.send_multipart([owner, ipc_protocol.encode(ipc_protocol.Outputs(group))])

    def release(self, name: str) -> list[str]:
        """Forgets a process that has ended. Returns the ids of its requests."""
        ended = name.encode()
        self.released.add(ended)
        ids = [id for id, owner in self.owners.items() if owner == ended]
        for id in ids:
            del self.owners[id]
        return ids


class EngineChannel:
    """Ends with the frontend, which holds the other end of standard input."""

    def __init__(self, name: str, command_addr: str, event_addr: str, router_addr: str | None = None) -> None:
        """Connects to the frontend. `router_addr`: where several frontend processes connect; None with a single one."""
        self.name = name.encode()
        self.event_addr = event_addr
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.commands = connect(self.context, self.name.decode(), command_addr)
        self.events = self._push(self.context)
        self.poller = zmq.Poller()
        self.poller.register(self.commands, zmq.POLLIN)
        self.poller.register(sys.stdin.fileno(), zmq.POLLIN)
        self.router = None if router_addr is None else FrontendRouter(self.context, router_addr)
        if self.router is not None:
            self.poller.register(self.router.socket, zmq.POLLIN)
        self.last_received = time.monotonic()

    def _push(self, context: zmq.Context[zmq.Socket[bytes]], high_water_mark: int = 0) -> zmq.Socket[bytes]:
        """Returns a socket for events. Unsent messages are dropped `REASON_SECONDS` after its context is terminated."""
        socket = context.socket(zmq.PUSH)
        socket.setsockopt(zmq.LINGER, int(REASON_SECONDS * 1000))
        socket.setsockopt(zmq.SNDHWM, high_water_mark)
        socket.connect(self.event_addr)
        return socket

    def send_hello(self) -> None:
        threading.Thread(target=self._send_beats, name="heartbeat", daemon=True).start()
        self.commands.send(ipc_protocol.encode(ipc_protocol.Hello(ipc_protocol.VERSION, os.getpid())))

    def configuration(self) -> ipc_protocol.Configure:
        """Wait for what to load: the answer to the greeting. Raises FrontendGone."""
        while True:
            for command in self.receive(1.0):
                if isinstance(command, ipc_protocol.Configure):
                    return command
                if isinstance(command, ipc_protocol.Stop):
                    raise FrontendGone(command.reason)

    def has_command(self) -> bool:
        """Whether a command is here."""
        if int(self.commands.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            return True
        return self.router is not None and self.router.has_command()

    def receive(self, seconds: float) -> Iterator[ipc_protocol.Command]:
        """Every command that is here, after waiting at most `seconds` for the first. Raises FrontendGone."""
        ready = dict(self.poller.poll(int(seconds * 1000)))
        if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 4096):
            raise FrontendGone("its end of the pipe is closed")
        if self.router is None:
            yield from self._receive_commands()
        else:
            yield from self._receive_all(self.router)
        if time.monotonic() - self.last_received > ipc_protocol.FRONTEND_SILENCE_SECONDS:
            raise FrontendGone(f"no message for {ipc_protocol.FRONTEND_SILENCE_SECONDS:.0f} s")

    def _receive_commands(self) -> Iterator[ipc_protocol.Command]:
        while True:
            try:
                data = self.commands.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.last_received = time.monotonic()
            yield ipc_protocol.decode_command(data)

    def _receive_all(self, router: FrontendRouter) -> Iterator[ipc_protocol.Command]:
        """Yields commands of all sockets. An adapter is loaded before its requests, and unloaded after them."""
        unloads = []
        for command in self._receive_commands():
            match command:
                case ipc_protocol.Call(operation=ipc_protocol.UnloadAdapter()):
                    unloads.append(command)
                case ipc_protocol.ReleaseFrontend(name):
                    yield ipc_protocol.Abort(router.release(name))
                case _:
                    yield command
        yield from router.receive()
        yield from unloads

    def send(self, event: ipc_protocol.Event) -> None:
        if self.router is not None and isinstance(event, ipc_protocol.Outputs):
            self.router.send(event.outputs)
            return
        self.events.send_multipart([self.name, ipc_protocol.encode(event)])

    def fail(self, sentence: str) -> None:
        """Sends the reason to the frontend and exits with code 1, at most `REASON_SECONDS` later.

        Any thread may call it: the main thread may be blocked in a collective.
        """
        context = zmq.Context()  # a separate context: term() waits for this message only
        end = self._push(context)
        end.send_multipart([self.name, ipc_protocol.encode(ipc_protocol.Fatal(sentence))])
        log.error("%s", sentence)
        end.close()
        context.term()
        os._exit(1)

    def _send_beats(self) -> None:
        """Sends heartbeats as long as the process runs. A socket belongs to one thread, so this is another one."""
        socket = self._push(zmq.Context(), UNSENT_BEATS)
        beat = [self.name, ipc_protocol.encode(ipc_protocol.Heartbeat())]
        while True:
            with contextlib.suppress(zmq.Again):
                socket.send_multipart(beat, zmq.NOBLOCK)
            time.sleep(ipc_protocol.HEARTBEAT_SECONDS)

    def close(self) -> None:
        self.context.destroy()
