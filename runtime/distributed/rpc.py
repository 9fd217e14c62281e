"""Messages with arrays between the ranks of a replica, over sockets, in addition to their collectives.

Rank 0 sends work. The other ranks reply while they load, and send heartbeats. A closed socket means that a process is
gone, so that no rank waits for the timeout of a collective.
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

VERSION = 6  # of the protocol; raised whenever a message changes its name or meaning
HEARTBEAT_SECONDS = 1.0
UNACKNOWLEDGED_SECONDS = 30.0  # without acknowledgment from another host, after which the connection is closed
_HEAD = struct.Struct("<II")  # bytes of the message, and of its arrays
_MAX_BYTES = 1 << 30  # bytes of either

Arrays = dict[str, np.ndarray]


class ConnectionClosed(Exception):
    """The peer has closed the connection."""


class Hello(msgspec.Struct, tag=True, frozen=True):
    """First message of a rank: protocol version, process, and its node and index on that node."""

    version: int
    pid: int
    host: str
    node: int
    local: int


class Join(msgspec.Struct, tag=True, frozen=True):
    """The group that a rank joins.

    Attributes:
        rank: The rank's number.
        size: Number of ranks.
        host: Address of the store for rendezvous.
        port: Its port.
        seconds: Timeout of collectives.
        device: The rank's device.
        same_host: All ranks are on one host, and were started there.
    """

    rank: int
    size: int
    host: str
    port: int
    seconds: float
    device: str
    same_host: bool


class CheckFiles(msgspec.Struct, tag=True, frozen=True):
    """The engine to be loaded. The reply is `FilesSeen`."""

    engine: EngineConfig


class FilesSeen(msgspec.Struct, tag=True, frozen=True):
    """File name -> digest, of the checkpoint and the adapters."""

    files: dict[str, str]


class LoadEngine(msgspec.Struct, tag=True, frozen=True):
    """Load the engine. The reply is `EngineLoaded`; then steps follow until `CloseEngine`."""


class EngineLoaded(msgspec.Struct, tag=True, frozen=True):
    pass


class Step(msgspec.Struct, tag=True, frozen=True):
    """Rows of a step. A `Sample` follows.

    Attributes:
        same: The layout is that of the last step, and only token ids follow.
        adapted: `active_lora_modules` of the layout.
    """

    same: bool = False
    adapted: int = 0


class Sample(msgspec.Struct, tag=True, frozen=True):
    none: bool = False
    groups: list[tuple[str, int]] = []  # each rule, and what it wants


class CaptureGraph(msgspec.Struct, tag=True, frozen=True):
    """Capture the next pending CUDA graph, which is the same on all ranks."""


class ComputeLogits(msgspec.Struct, tag=True, frozen=True):
    """Compute logits of all rows of a step, with a separate cache of `pages` pages."""

    pages: int
    adapted: int = 0


class FetchRows(msgspec.Struct, tag=True, frozen=True):
    """Fetch full logits of rows of the last step; the array `rows` has their indices."""


class AdapterPair(msgspec.Struct, tag=True, frozen=True):
    """A pair of the adapter that is being sent, for `tensor`; arrays `down` and `up`."""

    tensor: str


class AddAdapter(msgspec.Struct, tag=True, frozen=True):
    """Adds an adapter, of the pairs sent before."""

    name: str
    digest: str


class DropAdapter(msgspec.Struct, tag=True, frozen=True):
    name: str


class PutAdapter(msgspec.Struct, tag=True, frozen=True):
    """Copies an adapter into a slot of the device."""

    slot: int
    name: str


class CloseEngine(msgspec.Struct, tag=True, frozen=True):
    """Close the engine."""


class Heartbeat(msgspec.Struct, tag=True, frozen=True):
    """The process is alive. `steps`: number of completed steps."""

    steps: int


class WorkerFailed(msgspec.Struct, tag=True, frozen=True):
    """The rank exits.

    Attributes:
        sentence: The reason.
        user: Whether it is a configuration error.
    """

    sentence: str
    user: bool = False


Message = (
    Hello | Join | CheckFiles | FilesSeen | LoadEngine | EngineLoaded | Step | Sample | CaptureGraph | ComputeLogits
    | FetchRows | AdapterPair | AddAdapter | DropAdapter | PutAdapter | CloseEngine | Heartbeat | WorkerFailed
)  # fmt: skip


class _Frame(msgspec.Struct):
    message: Message
    arrays: list[tuple[str, str, tuple[int, ...]]] = []  # name, dtype, shape


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[_Frame] = msgspec.msgpack.Decoder(_Frame)


class RpcConnection:
    """A connection between two ranks. Any thread may send, one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._sending = threading.Lock()
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # a host that is gone does not acknowledge heartbeats
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNACKNOWLEDGED_SECONDS * 1000))

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: Message, arrays: Mapping[str, np.ndarray[Any, Any]] | None = None) -> None:
        """Sends a message with arrays. Raises ConnectionClosed."""
        every = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
        head = _encoder.encode(_Frame(message, [(name, a.dtype.str, a.shape) for name, a in every.items()]))
        body = b"".join(a.tobytes() for a in every.values())
        try:
            with self._sending:
                self.socket.sendall(_HEAD.pack(len(head), len(body)) + head + body)
        except OSError as error:
            raise ConnectionClosed(str(error)) from None

    def receive(self) -> tuple[Message, Arrays]:
        """Receives the next message. Raises ConnectionClosed; ValueError for an invalid message."""
        head, body = _HEAD.unpack(self._read(_HEAD.size))
        if max(head, body) > _MAX_BYTES:
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
                got = self.socket.recv_into(view[done:])
            except OSError as error:
                raise ConnectionClosed(str(error)) from None
            if not got:
                raise ConnectionClosed("closed")
            done += got
        return data

    def wait_closed(self) -> None:
        """Returns when the peer has closed the connection; reads nothing."""
        poller = select.poll()
        poller.register(self.socket, select.POLLRDHUP)  # and errors, which poll always returns
        poller.poll()

    def close(self) -> None:
        self.socket.close()
