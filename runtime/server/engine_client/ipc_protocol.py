"""Messages between frontend and backends: tagged structs as msgpack.

A backend connects a DEALER socket to the command address of the frontend, and a PUSH socket to its event address. It
sends ``Hello`` with the version of the protocol over the DEALER socket, and the frontend replies with ``Configure``.
Afterwards the frontend sends commands over the DEALER connection. The backend sends events over the PUSH connection,
each with the backend's name in a frame of its own. ``Ping``, ``Stats`` and ``Heartbeat`` show that the processes run.

With several frontend processes, their parent process has these two sockets. The backend also binds a ROUTER. Each
frontend process connects a DEALER to it, sends ``Add`` and ``Abort``, and receives the ``Outputs`` of its requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from runtime.config import EngineConfig, ServerConfig
from runtime.request.engine_messages import EngineInfo, EngineOutput, EngineStats, RequestSpec

VERSION = 15  # version of the protocol; increased if a struct or its meaning changes

PING_SECONDS = 1.0  # interval of `Ping`; an idle backend replies to each with `Stats`
BUSY_STATS_SECONDS = 0.25  # interval of `Stats` while a backend runs steps
HEARTBEAT_SECONDS = 1.0  # interval of `Heartbeat`
# A backend that sends nothing for this time, not even a `Heartbeat`, is not ready and gets no requests.
UNRESPONSIVE_SECONDS = 20.0
FRONTEND_SILENCE_SECONDS = 30.0  # a backend exits if it receives nothing for this time
BACKEND_SILENCE_SECONDS = 120.0  # a loaded backend whose steps hang for this time is killed; `Heartbeat` does not count


class Hello(msgspec.Struct, tag=True, frozen=True):
    """First message of a backend."""

    version: int
    pid: int


class Configure(msgspec.Struct, tag=True, frozen=True):
    """The frontend's reply to `Hello`.

    Attributes:
        devices: indices of the visible GPUs that the replica uses.
        nodes: number of hosts of the replica.
        address, port: where the ranks on other hosts connect to, if `nodes` exceeds 1.
        chat_template: file that replaces the checkpoint's chat template; it is checked before a download.
    """

    engine: EngineConfig
    devices: tuple[int, ...]
    log_level: str
    log_format: str
    nodes: int = 1
    address: str = "localhost"
    port: int = 0
    chat_template: str | None = None

    @classmethod
    def of(cls, config: ServerConfig, engine: EngineConfig, replica: int) -> Configure:
        devices, port = config.devices_of(replica), config.master_port or 0
        placement = config.num_nodes, config.master_addr, port
        return cls(engine, devices, config.log_level, config.log_format, *placement, config.chat_template)


class Choice(NamedTuple):
    """Fields of a `RequestSpec` that differ between the choices of an HTTP request."""

    id: str
    seed: int
    counts_prompt: bool


class Add(msgspec.Struct, tag=True, frozen=True):
    """New requests.

    Choices of an HTTP request differ only in `Choice`, so a long prompt is sent once.

    Attributes:
        groups: the first of consecutive requests that are equal but for `Choice`, and that of each of them.
    """

    groups: list[tuple[RequestSpec, list[Choice]]]

    @classmethod
    def of(cls, specs: list[RequestSpec]) -> Add:
        groups: list[tuple[RequestSpec, list[Choice]]] = []
        for spec in specs:
            if not groups or not _equal_but_choice(groups[-1][0], spec):
                groups.append((spec, []))
            groups[-1][1].append(Choice(spec.id, spec.seed, spec.counts_prompt))
        return cls(groups)

    def ids(self) -> Iterator[str]:
        return (choice.id for _, choices in self.groups for choice in choices)

    def requests(self) -> Iterator[RequestSpec]:
        """Yields all requests in their order."""
        return (replace(spec, **choice._asdict()) for spec, choices in self.groups for choice in choices)


def _equal_but_choice(first: RequestSpec, spec: RequestSpec) -> bool:
    changed = Choice(first.id, first.seed, first.counts_prompt)._asdict()
    return spec.prompt is first.prompt and replace(spec, **changed) == first


class Abort(msgspec.Struct, tag=True, frozen=True):
    """Ends requests. The backend replies with ``Outputs`` that have the tokens that were not sent."""

    ids: list[str]


class Ping(msgspec.Struct, tag=True, frozen=True):
    """Shows that the frontend runs. An idle backend replies with ``Stats``."""


class ReleaseFrontend(msgspec.Struct, tag=True, frozen=True):
    """A frontend process has exited. The backend aborts its requests and ignores its further messages."""

    name: str


class Stop(msgspec.Struct, tag=True, frozen=True):
    """The process exits immediately with exit code 0, and drops running requests. `reason` is for the log."""

    reason: str = ""


class LoadAdapter(msgspec.Struct, tag=True, frozen=True):
    """Loads an adapter. Requests may name it after the call has succeeded.

    Attributes:
        by_request: it counts as host memory of adapters that requests have loaded.
        max_bytes: maximum of this memory. None: no limit.
        reload: it was loaded before a restart of the backend. Such adapters are read one after the other.
    """

    name: str
    uri: str
    by_request: bool = False
    max_bytes: int | None = None
    reload: bool = False


class UnloadAdapter(msgspec.Struct, tag=True, frozen=True):
    """Unloads an adapter once no request uses it."""

    name: str


class StartProfile(msgspec.Struct, tag=True, frozen=True):
    """Starts to record steps. `directory` is where `StopProfile` writes the profile."""

    directory: str


class StopProfile(msgspec.Struct, tag=True, frozen=True):
    """Writes the profile into the directory, or discards it if not `keep`. The result is the path of the file."""

    keep: bool = True


class ReportStats(msgspec.Struct, tag=True, frozen=True):
    """Sends ``Stats`` before the next step."""


Operation = LoadAdapter | UnloadAdapter | StartProfile | StopProfile | ReportStats


class Call(msgspec.Struct, tag=True, frozen=True):
    """An operation. The backend replies with ``CallResult`` with the same number when the operation is complete."""

    number: int
    operation: Operation


Command = Configure | Add | Abort | Ping | ReleaseFrontend | Stop | Call


class Loading(msgspec.Struct, tag=True, frozen=True):
    phase: str
    done_bytes: int
    total_bytes: int


class Heartbeat(msgspec.Struct, tag=True, frozen=True):
    """Shows that the process runs. A separate thread sends it, also while the engine compiles or captures graphs."""


class Ready(msgspec.Struct, tag=True, frozen=True):
    info: EngineInfo
    load_seconds: float


class Outputs(msgspec.Struct, tag=True, frozen=True):
    """Outputs of one step for all requests."""

    outputs: list[EngineOutput]


class Stats(msgspec.Struct, tag=True, frozen=True):
    stats: EngineStats


class CallResult(msgspec.Struct, tag=True, frozen=True):
    """Result of a ``Call``. `error` is the reason if it failed, and `status` the HTTP status of this error."""

    number: int
    value: str = ""
    error: str | None = None
    status: int = 400


class Fatal(msgspec.Struct, tag=True, frozen=True):
    """The process exits, or cannot start. `sentence` is the reason as shown to users."""

    sentence: str


Event = Loading | Heartbeat | Ready | Outputs | Stats | CallResult | Fatal
T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_hello: msgspec.msgpack.Decoder[Hello] = msgspec.msgpack.Decoder(Hello)
_command: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_event: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def encode(message: Any) -> bytes:
    return _encoder.encode(message)


def decode_hello(data: bytes) -> Hello:
    """Raises ValueError if `data` is no hello, or if its version differs; the message has the version."""
    hello = _decoded(_hello, data, "a hello of this protocol")
    if hello.version != VERSION:
        raise ValueError(f"a hello of version {hello.version}, while this frontend speaks version {VERSION}")
    return hello


def decode_command(data: bytes) -> Command:
    """Raises ValueError if `data` is no command."""
    return _decoded(_command, data, "a command")


def decode_event(data: bytes) -> Event:
    """Raises ValueError if `data` is no event."""
    return _decoded(_event, data, "an event")


def _decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes, what: str) -> T:
    """Decodes `data`. Raises ValueError with a message of one short line."""
    try:
        return decoder.decode(data)
    except Exception as error:  # deep nesting raises other errors than DecodeError
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"not {what}: {reason}") from None
