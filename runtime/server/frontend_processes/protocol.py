"""Messages between the parent process of a server and its frontend processes: tagged structs as msgpack.

A frontend process connects a DEALER with its name to the parent's ROUTER, and greets with ``Hello``. The parent answers
with ``FrontendConfig`` and ``StateUpdate``. ``Heartbeat`` comes from the event loop of the frontend process.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.request.engine_messages import EngineInfo
from runtime.server.engine_client.adapter_registry import AdapterEntry
from runtime.server.engine_client.ipc_protocol import Heartbeat, Hello, Stop

Method = Literal["metrics", "load_adapter", "unload_adapter", "start_profile", "stop_profile"]


class ErrorPayload(msgspec.Struct, frozen=True):
    """A RequestError as a message."""

    message: str
    param: str | None
    status: int
    code: str | None

    @classmethod
    def of(cls, error: RequestError) -> ErrorPayload:
        return cls(error.message, error.param, error.status, error.code)

    def error(self) -> RequestError:
        return RequestError(self.message, param=self.param, status=self.status, code=self.code)


# -- from the parent


class FrontendConfig(msgspec.Struct, tag=True, frozen=True):
    """What to serve. `replaces`: other processes serve already, so this one accepts no connections until it can."""

    config: ServerConfig
    index: int
    replaces: bool


class ReplicaState(msgspec.Struct, frozen=True):
    """A replica. `addr`: of its loaded backend, "" if none is loaded. `exit_reason`: of the last one that exited."""

    addr: str
    exit_reason: str


class EngineState(msgspec.Struct, frozen=True):
    """State of the backends and adapters."""

    info: EngineInfo | None
    replicas: list[ReplicaState]
    ready: list[int]
    progress: tuple[str, int, int]
    adapters: dict[str, AdapterEntry]
    adapters_settled: bool
    complete: bool  # every frontend process can serve requests, or could once


class StateUpdate(msgspec.Struct, tag=True, frozen=True):
    """Answered by ``StateAck`` with its number."""

    number: int
    state: EngineState


class RpcResponse(msgspec.Struct, tag=True, frozen=True):
    number: int
    value: Any = None
    error: ErrorPayload | None = None


class BeginDrain(msgspec.Struct, tag=True, frozen=True):
    """Each answer ends its connection from now on."""


class Drain(msgspec.Struct, tag=True, frozen=True):
    """Close the listener, and exit when all requests have finished or after --drain-timeout."""


# -- from a frontend process


class Listening(msgspec.Struct, tag=True, frozen=True):
    """The process accepts connections."""


class Loaded(msgspec.Struct, tag=True, frozen=True):
    """The tokenizer is loaded."""


class StateAck(msgspec.Struct, tag=True, frozen=True):
    """Acknowledges a state. `error`: why the process could not apply it."""

    number: int
    error: str = ""


class RpcRequest(msgspec.Struct, tag=True, frozen=True):
    """A call of the parent, answered by ``RpcResponse`` with its number."""

    number: int
    method: Method
    arguments: list[str] = []


class StartupFailed(msgspec.Struct, tag=True, frozen=True):
    """The process cannot serve. `sentence` is the reason, for users."""

    sentence: str


ToFrontend = FrontendConfig | StateUpdate | RpcResponse | BeginDrain | Drain | Stop
ToParent = Hello | Listening | Loaded | StateAck | RpcRequest | Heartbeat | StartupFailed

to_frontend: msgspec.msgpack.Decoder[ToFrontend] = msgspec.msgpack.Decoder(ToFrontend)
to_parent: msgspec.msgpack.Decoder[ToParent] = msgspec.msgpack.Decoder(ToParent)
