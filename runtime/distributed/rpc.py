"""What the processes of one replica say to each other beside their collectives: messages with arrays, over a socket.

The rank that leads says what is to be done; the others answer while they load, and beat. A socket that closes is a
process that has gone, so that nobody has to wait for a collective's limit to learn it.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from runtime.config import EngineConfig

VERSION = 3  # of this file; raised whenever a struct changes its meaning
BEAT_SECONDS = 1.0
UNHEARD_SECONDS = 30.0  # after which what another host has not taken ends the connection
_HEAD = struct.Struct("<II")  # bytes of the message, and of its arrays
_MOST = 1 << 30  # bytes of either

Arrays = dict[str, np.ndarray]


class Gone(Exception):
    """The other end has closed."""


class Hello(msgspec.Struct, tag=True, frozen=True):
    """A rank's first words: the protocol's version, which process it is, and which of its node's (`node`, `local`)."""

    version: int
    pid: int
    host: str
    node: int
    local: int


class Join(msgspec.Struct, tag=True, frozen=True):
    """Whom it is one of: the store at `host`:`port` is where they meet; `device` names its own. `near`: all of them are
    of one host, and were started there."""

    rank: int
    size: int
    host: str
    port: int
    seconds: float
    device: str
    near: bool


class Look(msgspec.Struct, tag=True, frozen=True):
    """Which engine is to be loaded. `Seen` is answered."""

    engine: EngineConfig


class Seen(msgspec.Struct, tag=True, frozen=True):
    """The checkpoint's and the adapters' files, by a digest of each."""

    files: dict[str, str]


class Load(msgspec.Struct, tag=True, frozen=True):
    """Load it. `Loaded` is answered, and then steps follow until `Close`."""


class Loaded(msgspec.Struct, tag=True, frozen=True):
    pass


class Step(msgspec.Struct, tag=True, frozen=True):
    """A step's rows; `same`: they lie as the last step's did, and only their tokens come. What is sampled follows as
    `Sample`, which says `none` of a step that samples nothing. `adapted`: see StepPlan."""

    same: bool = False
    adapted: int = 0


class Sample(msgspec.Struct, tag=True, frozen=True):
    none: bool = False
    groups: list[tuple[str, int]] = []  # each rule, and what it wants


class Whole(msgspec.Struct, tag=True, frozen=True):
    """Logits of all rows of a step, over a cache of its own of so many pages."""

    pages: int
    adapted: int = 0


class Rows(msgspec.Struct, tag=True, frozen=True):
    """Whole logits of some of the last step's rows, which come as `rows`."""


class AdapterPair(msgspec.Struct, tag=True, frozen=True):
    """What the adapter that comes next does to a tensor: `down` and `up`."""

    tensor: str


class AddAdapter(msgspec.Struct, tag=True, frozen=True):
    """From now on there is an adapter of this name, of the pairs that came before."""

    name: str
    digest: str


class DropAdapter(msgspec.Struct, tag=True, frozen=True):
    name: str


class PutAdapter(msgspec.Struct, tag=True, frozen=True):
    """Into a slot of the device."""

    slot: int
    name: str


class Close(msgspec.Struct, tag=True, frozen=True):
    """Drop the engine."""


class Beat(msgspec.Struct, tag=True, frozen=True):
    """The process lives, and has done so many steps."""

    steps: int


class Failed(msgspec.Struct, tag=True, frozen=True):
    """It ends; `sentence` says why. `user`: it is something that whoever started it can mend."""

    sentence: str
    user: bool = False


Message = (
    Hello | Join | Look | Seen | Load | Loaded | Step | Sample | Whole | Rows | AdapterPair | AddAdapter | DropAdapter
    | PutAdapter | Close | Beat | Failed
)  # fmt: skip


class _Frame(msgspec.Struct):
    message: Message
    arrays: list[tuple[str, str, tuple[int, ...]]] = []  # name, dtype, shape


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[_Frame] = msgspec.msgpack.Decoder(_Frame)


class Wire:
    """One end. Any thread may send, one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._sending = threading.Lock()
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # a host that has gone without a word takes no beats either
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNHEARD_SECONDS * 1000))

    def fileno(self) -> int:
        return self.connection.fileno()

    def send(self, message: Message, arrays: Mapping[str, np.ndarray[Any, Any]] | None = None) -> None:
        """Raises Gone."""
        every = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
        head = _encoder.encode(_Frame(message, [(name, a.dtype.str, a.shape) for name, a in every.items()]))
        body = b"".join(a.tobytes() for a in every.values())
        try:
            with self._sending:
                self.connection.sendall(_HEAD.pack(len(head), len(body)) + head + body)
        except OSError as error:
            raise Gone(str(error)) from None

    def receive(self) -> tuple[Message, Arrays]:
        """The next message, waiting for it. Raises Gone; ValueError for what is none."""
        head, body = _HEAD.unpack(self._read(_HEAD.size))
        if max(head, body) > _MOST:
            raise ValueError("not a message of this protocol")
        try:
            frame = _decoder.decode(self._read(head))
        except msgspec.MsgspecError as error:
            raise ValueError(f"not a message of this protocol: {error}") from None
        data, arrays, first = self._read(body), {}, 0
        for name, dtype, shape in frame.arrays:
            count = int(np.prod(shape, dtype=np.int64))
            arrays[name] = np.frombuffer(data, np.dtype(dtype), count, first).reshape(shape)
            first += arrays[name].nbytes
        return frame.message, arrays

    def _read(self, count: int) -> bytearray:
        data = bytearray(count)
        view, done = memoryview(data), 0
        while done < count:
            try:
                got = self.connection.recv_into(view[done:])
            except OSError as error:
                raise Gone(str(error)) from None
            if not got:
                raise Gone("closed")
            done += got
        return data

    def wait_for_the_end(self) -> None:
        """Returns when the other end has closed; reads nothing."""
        poller = select.poll()
        poller.register(self.connection, select.POLLRDHUP)  # and errors, which are always told
        poller.poll()

    def close(self) -> None:
        self.connection.close()
