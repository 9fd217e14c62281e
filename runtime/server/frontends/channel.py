"""Messages between two processes of a server, over a pair of sockets that nobody else holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec

from runtime.server.engine_client.ipc_protocol import encode

_LENGTH = 4  # bytes before each message: how long it is
T = TypeVar("T")


class Channel(asyncio.Protocol, Generic[T]):
    """One end. `hear` takes each message, in their order; `lost` is told when the other end has gone."""

    def __init__(
        self, decoder: msgspec.msgpack.Decoder[T], hear: Callable[[T], object], lost: Callable[[], object]
    ) -> None:
        self.decoder = decoder
        self.hear = hear
        self.lost = lost
        self.transport: asyncio.Transport | None = None
        self._read = bytearray()

    def say(self, message: Any) -> None:
        """To one that has gone nothing is said."""
        if self.transport is not None and not self.transport.is_closing():
            data = encode(message)
            self.transport.write(len(data).to_bytes(_LENGTH, "big") + data)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    # -- the transport's events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        read = self._read
        read += data
        begin = 0
        while len(read) - begin >= _LENGTH:
            first = begin + _LENGTH
            end = first + int.from_bytes(read[begin:first], "big")
            if end > len(read):
                break
            message = self.decoder.decode(read[first:end])
            begin = end
            self.hear(message)
        del read[:begin]

    def connection_lost(self, error: Exception | None) -> None:
        self.lost()
