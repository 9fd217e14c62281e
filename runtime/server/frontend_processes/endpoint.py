"""ZeroMQ sockets on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq


class Endpoint:
    """A socket whose messages the event loop of this thread passes on."""

    def __init__(self, socket: zmq.Socket[bytes], on_message: Callable[[list[bytes]], None]) -> None:
        """Starts to receive. `on_message` is called with the frames of each message."""
        self.socket = socket
        self.on_message = on_message
        self.loop = asyncio.get_running_loop()
        self.loop.add_reader(socket.fileno(), self.read)
        self.loop.call_soon(self.read)

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames, zmq.NOBLOCK)
        if int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:  # a send may consume the edge of the descriptor
            self.loop.call_soon(self.read)

    def read(self) -> None:
        """Pass on all messages that are here."""
        while not self.socket.closed:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self.on_message(frames)
            except BaseException:
                self.loop.call_soon(self.read)  # the descriptor reports the messages behind this one only once
                raise

    def close(self) -> None:
        if not self.socket.closed:
            self.loop.remove_reader(self.socket.fileno())
            self.socket.close()


def connect(context: zmq.Context[zmq.Socket[bytes]], name: str, addr: str) -> zmq.Socket[bytes]:
    """Returns a DEALER with this name. Messages wait until it is connected."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, name.encode())
    for option in (zmq.LINGER, zmq.SNDHWM, zmq.RCVHWM):
        socket.setsockopt(option, 0)
    socket.connect(addr)
    return socket
