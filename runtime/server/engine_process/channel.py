"""The sockets of a backend process to its frontend."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator

import zmq

from runtime.server.engine_client import ipc_protocol
from runtime.server.engine_client.ipc_protocol import Command, Configure, Event, Fatal, Heartbeat, Hello

log = logging.getLogger("unmask.backend")

UNSENT_BEATS = 4  # heartbeats kept while the frontend reads nothing
REASON_SECONDS = 2.0  # longest wait until the reason has been sent


class FrontendGone(Exception):
    """The frontend has exited."""


class EngineChannel:
    """Ends with the frontend, which holds the other end of standard input."""

    def __init__(self, name: str, command_addr: str, event_addr: str) -> None:
        self.name = name.encode()
        self.event_addr = event_addr
        self.context = zmq.Context()
        self.commands = self.context.socket(zmq.DEALER)
        self.commands.setsockopt(zmq.IDENTITY, self.name)
        self.events = self.context.socket(zmq.PUSH)
        for end, addr in ((self.commands, command_addr), (self.events, event_addr)):
            end.setsockopt(zmq.LINGER, 2000)  # so that the reason for an end still gets out
            end.setsockopt(zmq.SNDHWM, 0)
            end.setsockopt(zmq.RCVHWM, 0)
            end.connect(addr)
        self.poller = zmq.Poller()
        self.poller.register(self.commands, zmq.POLLIN)
        self.poller.register(sys.stdin.fileno(), zmq.POLLIN)
        self.last_received = time.monotonic()

    def send_hello(self) -> None:
        threading.Thread(target=self._send_beats, name="heartbeat", daemon=True).start()
        self.commands.send(ipc_protocol.encode(Hello(ipc_protocol.VERSION, os.getpid())))

    def configuration(self) -> Configure:
        """Wait for what to load: the answer to the greeting. Raises FrontendGone."""
        while True:
            for command in self.receive(1.0):
                if isinstance(command, Configure):
                    return command
                if isinstance(command, ipc_protocol.Stop):
                    raise FrontendGone(command.reason)

    def has_command(self) -> bool:
        """Whether a command is here."""
        return bool(int(self.commands.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def receive(self, seconds: float) -> Iterator[Command]:
        """Every command that is here, after waiting at most `seconds` for the first. Raises FrontendGone."""
        ready = dict(self.poller.poll(int(seconds * 1000)))
        if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 4096):
            raise FrontendGone("its end of the pipe is closed")
        while True:
            try:
                data = self.commands.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            self.last_received = time.monotonic()
            yield ipc_protocol.decode_command(data)
        if time.monotonic() - self.last_received > ipc_protocol.FRONTEND_SILENCE_SECONDS:
            raise FrontendGone(f"no message for {ipc_protocol.FRONTEND_SILENCE_SECONDS:.0f} s")

    def send(self, event: Event) -> None:
        self.events.send_multipart([self.name, ipc_protocol.encode(event)])

    def fail(self, sentence: str) -> None:
        """Sends the reason to the frontend and exits with code 1, at most `REASON_SECONDS` later.

        Any thread may call it: the main thread may be blocked in a collective.
        """
        context = zmq.Context()  # a separate context: term() waits for this message only
        end = context.socket(zmq.PUSH)
        end.setsockopt(zmq.LINGER, int(REASON_SECONDS * 1000))
        end.connect(self.event_addr)
        end.send_multipart([self.name, ipc_protocol.encode(Fatal(sentence))])
        log.error("%s", sentence)
        end.close()
        context.term()
        os._exit(1)

    def _send_beats(self) -> None:
        """Sends heartbeats as long as the process runs. A socket belongs to one thread, so this is another one."""
        context = zmq.Context()
        socket = context.socket(zmq.PUSH)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, UNSENT_BEATS)
        socket.connect(self.event_addr)
        beat = [self.name, ipc_protocol.encode(Heartbeat())]
        while True:
            with contextlib.suppress(zmq.Again):
                socket.send_multipart(beat, zmq.NOBLOCK)
            time.sleep(ipc_protocol.HEARTBEAT_SECONDS)

    def close(self) -> None:
        self.context.destroy()
