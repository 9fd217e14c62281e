"""Messages between the parent process of a server and its frontend processes: tagged structs as msgpack.

A frontend process connects a DEALER socket with its name to the parent's ROUTER, and sends ``Hello``. The parent
replies with ``FrontendConfig`` and ``EngineState``. The event loop of the frontend process sends ``Heartbeat``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from runtime.config import ServerConfig
from runtime.request.engine_messages import EngineInfo
from runtime.server.engine_client.adapter_registry import AdapterEntry
from runtime.server.engine_client.client import Method
from runtime.server.engine_client.ipc_protocol import Fatal, Heartbeat, Hello, Stop

# -- from the parent


class FrontendConfig(msgspec.Struct, tag=True, frozen=True):
    """Configuration of a frontend process.

    Attributes:
        index: index of the process.
        replaces: other processes are ready, so this one accepts connections only after it has loaded.
    """

    config: ServerConfig
    index: int
    replaces: bool


class ReplicaConnection(msgspec.Struct, frozen=True):
    """Address of a replica for frontend processes.

    Attributes:
        addr: address of its loaded backend; "" if none is loaded.
        exit_reason: reason for the exit of the last backend that exited.
    """

    addr: str
    exit_reason: str


class EngineState(msgspec.Struct, tag=True, frozen=True):
    """State of the backends and adapters. The frontend process replies with ``StateAck``.

    Attributes:
        ready: indices of the ready replicas.
        progress: as ``EngineClient.progress``.
        adapters_settled: as ``AdapterRegistry.settled``.
        complete: as ``EngineClient.complete``.
    """

    info: EngineInfo | None
    replicas: list[ReplicaConnection]
    ready: list[int]
    progress: tuple[str, int, int]
    adapters: dict[str, AdapterEntry]
    adapters_settled: bool
    complete: bool


class RpcResponse(msgspec.Struct, tag=True, frozen=True):
    """Response to an ``RpcRequest``. `error`: the attributes of a RequestError; None if the call succeeded."""

    number: int
    value: Any = None
    error: dict[str, Any] | None = None


class BeginDrain(msgspec.Struct, tag=True, frozen=True):
    """The process closes each connection after its next response."""


class Drain(msgspec.Struct, tag=True, frozen=True):
    """The process closes the listener, and exits when all requests have finished or after --drain-timeout."""


# -- from a frontend process


class Listening(msgspec.Struct, tag=True, frozen=True):
    """The process accepts connections."""


class Loaded(msgspec.Struct, tag=True, frozen=True):
    """The tokenizer is loaded."""


class StateAck(msgspec.Struct, tag=True, frozen=True):
    """Acknowledges the oldest state without acknowledgment. `error`: why it could not be applied; "" if it could."""

    error: str = ""


class RpcRequest(msgspec.Struct, tag=True, frozen=True):
    """A call of a method of the parent, which replies with ``RpcResponse`` with the same number."""

    number: int
    method: Method
    arguments: list[str] = []


ToFrontend = FrontendConfig | EngineState | RpcResponse | BeginDrain | Drain | Stop
ToParent = Hello | Listening | Loaded | StateAck | RpcRequest | Heartbeat | Fatal

to_frontend: msgspec.msgpack.Decoder[ToFrontend] = msgspec.msgpack.Decoder(ToFrontend)
to_parent: msgspec.msgpack.Decoder[ToParent] = msgspec.msgpack.Decoder(ToParent)
