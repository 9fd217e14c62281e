"""Messages between the ranks of a replica, over sockets, in addition to their collectives.

Rank 0 sends the steps. The other ranks reply only while they load, and send heartbeats. A closed socket means that a
process has exited, so no rank has to wait for the timeout of a collective.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from typing import Any

import msgspec
import numpy as np

from runtime.config import EngineConfig
from runtime.scheduling.step_plan import PageWrites, StateWrite

VERSION = 18  # version of the protocol; increased if a message or its meaning changes
HEARTBEAT_SECONDS = 1.0
UNACKNOWLEDGED_SECONDS = 30.0  # a connection is closed if another host acknowledges nothing for this time
_HEAD = struct.Struct("<Q")  # header of a message: its length in bytes
_MAX_BYTES = 1 << 30  # maximum length of a message
_MAX_FIRST_BYTES = 1 << 16  # of a `Hello`


class ConnectionClosed(Exception):
    """The peer has closed the connection."""


class Hello(msgspec.Struct, tag=True, frozen=True):
    """First message of a rank.

    Attributes:
        version: version of the protocol.
        node: index of its host.
        local: index of the rank on its host.
    """

    version: int
    host: str
    node: int
    local: int


class Join(msgspec.Struct, tag=True, frozen=True):
    """The group that a rank joins. The reply is `DeviceSelected`.

    Attributes:
        rank: index of the rank.
        size: number of ranks.
        host: address of rank 0.
        port: port of torch's store for rendezvous on this address; 0: `store_file` is used.
        store_file: descriptor of the store's file, which the rank has inherited; None if there are several hosts.
        seconds: timeout of collectives.
        device: torch's name of the device of the rank.
    """

    rank: int
    size: int
    host: str
    port: int
    store_file: int | None
    seconds: float
    device: str


class DeviceSelected(msgspec.Struct, tag=True, frozen=True):
    """The rank uses a device of the model `name`."""

    name: str


class CheckFiles(msgspec.Struct, tag=True, frozen=True):
    """The rank computes the digests of the files of `engine`, which is loaded next. The reply is `FilesSeen`."""

    engine: EngineConfig


class FilesSeen(msgspec.Struct, tag=True, frozen=True):
    """Digests of the files of the checkpoint, the adapters and the plugins, by file name."""

    files: dict[str, str]


class LoadEngine(msgspec.Struct, tag=True, frozen=True):
    """The rank loads the engine. The reply is `EngineLoaded`. Steps follow until `CloseEngine`."""


class EngineLoaded(msgspec.Struct, tag=True, frozen=True):
    pass


class Step(msgspec.Struct, tag=True, frozen=True):
    """The rank launches the forward of a step. `plan`: result of ``serialization.encode_forward``.

    A `Sample` follows, unless rank 0 abandons a step that it has launched early and sends another `Step`.
    """

    plan: bytes


class WriteTables(msgspec.Struct, tag=True, frozen=True):
    """The rank stores content and pages of requests."""

    writes: tuple[StateWrite, ...]
    page_writes: PageWrites | None


class Sample(msgspec.Struct, tag=True, frozen=True):
    """The rank samples the last `Step`. `blocks`: result of ``serialization.encode_blocks``; b"": no blocks."""

    blocks: bytes


class CheckTables(msgspec.Struct, tag=True, frozen=True):
    """The rank takes part in gathering the checksums of ``RequestStates``."""


class CaptureGraph(msgspec.Struct, tag=True, frozen=True):
    """The rank captures the next pending CUDA graph, which is the same on all ranks."""


class ComputeLogits(msgspec.Struct, tag=True, frozen=True):
    """The rank computes the logits of all rows of a step with a separate KV cache of `pages` pages.

    `plan`: as in `Step`.
    """

    plan: bytes
    pages: int


class FetchRows(msgspec.Struct, tag=True, frozen=True):
    """The rank takes part in gathering the complete logits of the rows `rows`, int64 [n], of the last step."""

    rows: np.ndarray


class AdapterPair(msgspec.Struct, tag=True, frozen=True):
    """The LoRA matrices of one tensor. `AddAdapter` follows after all pairs of the adapter."""

    tensor: str
    lora_a: np.ndarray
    lora_b: np.ndarray


class AddAdapter(msgspec.Struct, tag=True, frozen=True):
    """The rank adds an adapter that consists of the pairs received before."""

    name: str
    digest: str


class DropAdapter(msgspec.Struct, tag=True, frozen=True):
    name: str


class PutAdapter(msgspec.Struct, tag=True, frozen=True):
    """The rank copies an adapter into a slot of the device."""

    slot: int
    name: str


class CloseEngine(msgspec.Struct, tag=True, frozen=True):
    """The rank closes the engine."""


class Heartbeat(msgspec.Struct, tag=True, frozen=True):
    """Shows that the process runs."""


class WorkerFailed(msgspec.Struct, tag=True, frozen=True):
    """The rank exits.

    Attributes:
        sentence: the reason.
        user: whether it is a configuration error.
    """

    sentence: str
    user: bool = False


Message = (
    Hello | Join | DeviceSelected | CheckFiles | FilesSeen | LoadEngine | EngineLoaded | Step | WriteTables | Sample
    | CheckTables | CaptureGraph | ComputeLogits | FetchRows | AdapterPair | AddAdapter | DropAdapter | PutAdapter
    | CloseEngine | Heartbeat | WorkerFailed
)  # fmt: skip


def encode_array(value: object) -> tuple[str, tuple[int, ...], bytes]:
    """msgspec ``enc_hook``: encodes an array. Raises NotImplementedError for other types."""
    if not isinstance(value, np.ndarray):
        raise NotImplementedError(f"{type(value).__name__} cannot be sent")
    return value.dtype.str, value.shape, value.tobytes()


def decode_array(kind: object, value: Any) -> np.ndarray:
    """msgspec ``dec_hook``: decodes an array. The result is writable."""
    dtype, shape, data = value
    return np.frombuffer(bytearray(data), np.dtype(dtype)).reshape(shape)


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_array)
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message, dec_hook=decode_array)


class RpcConnection:
    """A connection between two ranks. All threads may send, but only one may receive."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._sending = threading.Lock()
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # a host that is down does not acknowledge heartbeats
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
        """Receives the next message.

        Raises:
            ConnectionClosed: the peer has closed the connection.
            ValueError: the message is invalid.
        """
        return self._receive(None, _MAX_BYTES)

    def receive_first(self, until: float) -> Message:
        """Receives the first message of a peer that may be a stranger.

        Args:
            until: time of ``time.monotonic()`` until which all of it must have arrived.

        Raises:
            ConnectionClosed: the peer has closed the connection.
            TimeoutError: the message is not complete in time.
            ValueError: the message is invalid.
        """
        try:
            return self._receive(until, _MAX_FIRST_BYTES)
        finally:
            self.socket.settimeout(None)

    def _receive(self, until: float | None, max_bytes: int) -> Message:
        (length,) = _HEAD.unpack(self._read(_HEAD.size, until))
        if length > max_bytes:
            raise ValueError("not a message of this protocol")
        try:
            return _decoder.decode(self._read(length, until))
        except msgspec.MsgspecError as error:
            raise ValueError(f"not a message of this protocol: {error}") from None

    def _read(self, count: int, until: float | None) -> bytearray:
        data = bytearray(count)
        view, done = memoryview(data), 0
        while done < count:
            if until is not None:
                self.socket.settimeout(max(until - time.monotonic(), 1e-3))
            try:
                got = self.socket.recv_into(view[done:])
            except TimeoutError:
                raise
            except OSError as error:
                raise ConnectionClosed(str(error)) from None
            if not got:
                raise ConnectionClosed("closed")
            done += got
        return data

    def wait_closed(self) -> None:
        """Returns when the peer has closed the connection. It reads no data."""
        poller = select.poll()
        poller.register(self.socket, select.POLLRDHUP)  # poll also returns errors, without a flag
        poller.poll()

    def close(self) -> None:
        self.socket.close()
