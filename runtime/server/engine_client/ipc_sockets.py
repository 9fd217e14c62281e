"""ZeroMQ sockets between the processes of a server: their directory, and their use in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import zmq

from runtime.errors import ConfigError

PREFIX = "unmask-"
LOCK = "lock"  # a file that the server locks; the kernel unlocks it when the process exits
_MADE = re.compile(rf"{PREFIX}[a-z0-9_]{{8}}")  # names of tempfile
# What a server makes in its directory: sockets, also of each replica's starts, and files.
_CONTENT = re.compile(rf"{LOCK}|unlocked|commands|events|parent|metrics|tokenizers|compiled|\d+\.\d+")


@contextlib.contextmanager
def socket_dir() -> Iterator[Path]:
    """Creates a directory that only this user can access, and removes it on exit.

    Raises:
        ConfigError: no directory for temporary files can be written and locked.
    """
    with contextlib.ExitStack() as stack:
        try:
            remove_abandoned()
            directory = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
            path = Path(stack.enter_context(directory))
            lock = stack.enter_context(open(path / "unlocked", "w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.rename(lock.name, path / LOCK)  # not before: servers remove a directory if they can lock its file
        except OSError as error:
            raise ConfigError(
                f"the directory for temporary files cannot be used: {error.strerror}; set TMPDIR to one that can be "
                "written and supports file locks"
            ) from None
        yield path


def remove_abandoned() -> None:
    """Removes directories of this user whose servers no longer run, and which have only files of a server."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it belongs to another user, its server runs, or it was removed meanwhile
            if not _MADE.fullmatch(path.name) or path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            if not all(_CONTENT.fullmatch(name) for name in os.listdir(path)):
                continue
            with open(os.open(path / LOCK, os.O_RDWR | os.O_NOFOLLOW)) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)


MAX_FRAME_BYTES = {zmq.ROUTER: 64 << 10, zmq.PULL: 64 << 20}  # a hello fits in the first, events in the second


def _set_unlimited(socket: zmq.Socket[bytes]) -> None:
    """Removes the high-water marks, and drops unsent messages when the socket is closed."""
    for option in (zmq.LINGER, zmq.SNDHWM, zmq.RCVHWM):
        socket.setsockopt(option, 0)


def bind_private(socket: zmq.Socket[bytes], addr: str) -> None:
    """Binds a socket without high-water marks to a path that other users cannot connect to.

    Raises:
        zmq.ZMQError: the address cannot be bound.
    """
    _set_unlimited(socket)
    before = os.umask(0o077)
    try:
        socket.bind(addr)
    finally:
        os.umask(before)


def has_message(socket: zmq.Socket[bytes]) -> bool:
    """Returns whether a message has arrived."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


class Endpoint:
    """A socket in the event loop of this thread, which calls `on_message` with the frames of each message."""

    def __init__(self, socket: zmq.Socket[bytes], on_message: Callable[[list[bytes]], None]) -> None:
        """Starts to receive messages."""
        self.socket = socket
        self.on_message = on_message
        self.loop = asyncio.get_running_loop()
        self.loop.add_reader(socket.fileno(), self.read)
        self.loop.call_soon(self.read)

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames, zmq.NOBLOCK)
        if has_message(self.socket):  # a send may consume the edge of the descriptor
            self.loop.call_soon(self.read)

    def read(self) -> None:
        """Calls `on_message` for each message that has arrived."""
        while not self.socket.closed:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self.on_message(frames)
            except BaseException:
                self.loop.call_soon(self.read)  # the descriptor does not become readable again for the other messages
                raise

    def close(self) -> None:
        if not self.socket.closed:
            self.loop.remove_reader(self.socket.fileno())
            self.socket.close()


def connect(context: zmq.Context[zmq.Socket[bytes]], name: str, addr: str) -> zmq.Socket[bytes]:
    """Returns a DEALER socket with the identity `name`. It queues messages until it is connected."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, name.encode())
    _set_unlimited(socket)
    socket.connect(addr)
    return socket
