"""Messages between the ranks of a replica, over sockets, in addition to their collectives.

Rank 0 sends work. The other ranks reply while they load, and send heartbeats. A closed socket means that a process is
gone, so that no rank waits for the timeout of a collective.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from typing import Any

import msgspec
import numpy as np

from runtime.config import EngineConfig

VERSION = 8  # of the protocol; raised whenever a message changes its name or meaning
HEARTBEAT_SECONDS = 1.0
UNACKNOWLEDGED_SECONDS = 30.0  # without acknowledgment from another host, after which the connection is closed
_HEAD = struct.Struct("<Q")  # bytes of the message
_MAX_BYTES = 1 << 30


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
    """Rows of a step: an encoded ``serialization._ForwardPlan``. Its forward is launched.

    A `Sample` follows, unless rank 0 abandons a step that it has launched early and sends another `Step`.
    """

    plan: bytes


class Sample(msgspec.Struct, tag=True, frozen=True):
    """Blocks of the last `Step`: an encoded ``DenoiseBlocks``; b"" if the step samples no blocks."""

    blocks: bytes


class CaptureGraph(msgspec.Struct, tag=True, frozen=True):
    """Capture the next pending CUDA graph, which is the same on all ranks."""


class ComputeLogits(msgspec.Struct, tag=True, frozen=True):
    """Compute logits of all rows of a step, with a separate cache of `pages` pages. `plan`: as in `Step`."""

    plan: bytes
    pages: int


class FetchRows(msgspec.Struct, tag=True, frozen=True):
    """Fetch full logits of the rows `rows` [n] of the last step."""

    rows: np.ndarray


class AdapterPair(msgspec.Struct, tag=True, frozen=True):
    """A pair of the adapter that is being sent, for `tensor`."""

    tensor: str
    down: np.ndarray
    up: np.ndarray


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


def encode_array(value: object) -> tuple[str, tuple[int, ...], bytes]:
    """Hook of msgspec that encodes arrays."""
    if not isinstance(value, np.ndarray):
        raise NotImplementedError(f"{type(value).__name__} cannot be sent")
    return value.dtype.str, value.shape, value.tobytes()


def decode_array(kind: object, value: Any) -> np.ndarray:
    """msgspec ``dec_hook``: decodes an array, which is writable."""
    dtype, shape, data = value
    return np.frombuffer(bytearray(data), np.dtype(dtype)).reshape(shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_array)
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message, dec_hook=decode_array)


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

    def send(self, message: Message) -> None:
        """Sends a message. Raises ConnectionClosed."""
        data = _encoder.encode(message)
        try:
            with self._sending:
                self.socket.sendall(_HEAD.pack(len(data)) + data)
        except OSError as error:
            raise ConnectionClosed(str(error)) from None

    def receive(self) -> Message:
        """Receives the next message. Raises ConnectionClosed; ValueError for an invalid message."""
        (length,) = _HEAD.unpack(self._read(_HEAD.size))
        if length > _MAX_BYTES:
            raise ValueError("not a message of this protocol")
        try:
            return _decoder.decode(self._read(length))
        except msgspec.MsgspecError as error:
            raise ValueError(f"not a message of this protocol: {error}") from None

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
