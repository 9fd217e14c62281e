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
from runtime.server.engine_client.ipc_sockets import bind_private, connect, has_message

log = logging.getLogger("unmask.backend")

UNSENT_BEATS = 4  # maximum number of queued heartbeats while the frontend reads nothing
REASON_SECONDS = 2.0  # maximum wait at the exit until the reason has been sent


class FrontendGone(Exception):
    """The frontend has exited, is silent, or has sent `Stop`. The message is the reason."""


class FrontendRouter:
    """The socket for several frontend processes. Each process receives the outputs of its own requests.

    Attributes:
        owners: name of the frontend process of each live request, by the id of the request.
        released: names of frontend processes that have exited.
    """

    def __init__(self, context: zmq.Context[Any], addr: str) -> None:
        self.socket = context.socket(zmq.ROUTER)
        bind_private(self.socket, addr)
        self.owners: dict[str, bytes] = {}
        self.released: set[bytes] = set()

    def receive(self) -> Iterator[ipc_protocol.Command]:
        """Yields the commands that have arrived."""
        while has_message(self.socket):
            name, data = self.socket.recv_multipart(zmq.NOBLOCK)
            if name in self.released:
                continue
            command = ipc_protocol.decode_command(data)
            match command:
                case ipc_protocol.Add():
                    self.owners.update(dict.fromkeys(command.ids(), name))
                    yield command
                case ipc_protocol.Abort(ids):
                    yield command  # first: it sends the last outputs of these requests
                    for id in ids:
                        self.owners.pop(id, None)
                case _:
                    yield command

    def send(self, outputs: list[EngineOutput]) -> None:
        """Sends each output to the frontend process of its request."""
        by_owner: dict[bytes, list[EngineOutput]] = {}
        for output in outputs:
            owner = self.owners.get(output.id)
            if owner is None:  # aborted before this output
                continue
            if output.finish_reason is not None:
                del self.owners[output.id]
            by_owner.setdefault(owner, []).append(output)
        for owner, group in by_owner.items():
            self.socket.send_multipart([owner, ipc_protocol.encode(ipc_protocol.Outputs(group))])

    def release(self, name: str) -> list[str]:
        """Removes a process that has exited, and returns the ids of its requests."""
        ended = name.encode()
        self.released.add(ended)
        ids = [id for id, owner in self.owners.items() if owner == ended]
        for id in ids:
            del self.owners[id]
        return ids


class EngineChannel:
    """The connection of a backend to its frontend: receives commands and sends events.

    Standard input is a pipe from the frontend, whose end of file shows that the frontend has exited.
    """

    def __init__(self, name: str, command_addr: str, event_addr: str, router_addr: str | None = None) -> None:
        """Connects to the frontend.

        Args:
            name: name of this process, the identity of its sockets.
            command_addr: address of the frontend's socket for commands.
            event_addr: address of the frontend's socket for events.
            router_addr: address to bind for several frontend processes. None: there is one frontend.
        """
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
        """Sends `Hello`, and starts to send heartbeats."""
        threading.Thread(target=self._send_beats, name="heartbeat", daemon=True).start()
        self.commands.send(ipc_protocol.encode(ipc_protocol.Hello(ipc_protocol.VERSION, os.getpid())))

    def configuration(self) -> ipc_protocol.Configure:
        """Waits for `Configure`, the reply to `Hello`. Raises FrontendGone."""
        while True:
            for command in self.receive(1.0):
                if isinstance(command, ipc_protocol.Configure):
                    return command

    def receive(self, seconds: float) -> Iterator[ipc_protocol.Command]:
        """Yields the commands that have arrived, after it has waited at most `seconds` for the first.

        An adapter is loaded before its requests, and unloaded after them: they may arrive on another socket.

        Raises:
            FrontendGone: the frontend has exited, has sent nothing for too long, or has sent `Stop`.
        """
        ready = dict(self.poller.poll(int(seconds * 1000)))
        if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 4096):
            raise FrontendGone("the frontend has exited: its end of the pipe is closed")
        unloads = []
        for command in self._receive_commands():
            match command:
                case ipc_protocol.Stop(reason):
                    raise FrontendGone(reason)
                case ipc_protocol.Call(operation=ipc_protocol.UnloadAdapter()):
                    unloads.append(command)
                case ipc_protocol.ReleaseFrontend(name) if self.router is not None:
                    yield ipc_protocol.Abort(self.router.release(name))
                case _:
                    yield command
        if self.router is not None:
            yield from self.router.receive()
        yield from unloads
        if time.monotonic() - self.last_received > ipc_protocol.FRONTEND_SILENCE_SECONDS:
            raise FrontendGone(f"no message from the frontend for {ipc_protocol.FRONTEND_SILENCE_SECONDS:.0f} s")

    def _receive_commands(self) -> Iterator[ipc_protocol.Command]:
        while has_message(self.commands):
            data = self.commands.recv(zmq.NOBLOCK)
            self.last_received = time.monotonic()
            yield ipc_protocol.decode_command(data)

    def send(self, event: ipc_protocol.Event) -> None:
        """Sends an event to the frontend, or outputs to the frontend processes of their requests."""
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
        logging.shutdown()
        os._exit(1)

    def _send_beats(self) -> None:
        """Sends heartbeats while the process runs. Sockets are not thread-safe, so this thread has its own socket."""
        socket = self._push(zmq.Context(), UNSENT_BEATS)
        beat = [self.name, ipc_protocol.encode(ipc_protocol.Heartbeat())]
        while True:
            with contextlib.suppress(zmq.Again):
                socket.send_multipart(beat, zmq.NOBLOCK)
            time.sleep(ipc_protocol.HEARTBEAT_SECONDS)

    def close(self) -> None:
        self.context.destroy()
