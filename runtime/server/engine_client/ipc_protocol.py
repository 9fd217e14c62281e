"""Messages between frontend and backends: tagged structs as msgpack, after a versioned hello.

A backend connects a DEALER to the frontend's command address and a PUSH to its event address, and greets on the
first with ``Hello``. The frontend answers with ``Configure``; from then on commands go down the one socket and
events, each in an envelope with the backend's name, come up the other. ``Ping``, ``Stats`` and ``Heartbeat`` are the
heartbeats.

With several frontend processes, their parent process has these two sockets. The backend also binds a ROUTER. Each
frontend process connects a DEALER to it, sends ``Add`` and ``Abort``, and receives the ``Outputs`` of its requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from runtime.config import EngineConfig, ServerConfig
from runtime.request.engine_messages import EngineInfo, EngineOutput, EngineStats, RequestSpec

VERSION = 9  # of this file; raised whenever a struct changes its meaning

PING_SECONDS = 1.0  # the frontend's heartbeat; an idle backend answers each ping
BUSY_STATS_SECONDS = 0.25  # how old the figures of a working backend may grow
HEARTBEAT_SECONDS = 1.0  # between two `Heartbeat`
# After so long without a message, not even a `Heartbeat`, a backend gets no requests and the server is not ready.
UNRESPONSIVE_SECONDS = 20.0
FRONTEND_SILENCE_SECONDS = 30.0  # a backend exits after so long without a message
BACKEND_SILENCE_SECONDS = 120.0  # a loaded backend is killed after so long without a message: a step hangs


class Hello(msgspec.Struct, tag=True, frozen=True):
    """First message of a backend."""

    version: int
    pid: int


class Configure(msgspec.Struct, tag=True, frozen=True):
    """The frontend's answer to a hello: what to load, on which of the visible GPUs, how to log, and where the replica's
    ranks on other hosts come to (`nodes` above 1)."""

    engine: EngineConfig
    devices: tuple[int, ...]
    log_level: str
    log_format: str
    nodes: int = 1
    address: str = "localhost"
    port: int = 0

    @classmethod
    def of(cls, config: ServerConfig, engine: EngineConfig, replica: int) -> Configure:
        devices, port = config.devices_of(replica), config.master_port or 0
        placement = config.num_nodes, config.master_addr, port
        return cls(engine, devices, config.log_level, config.log_format, *placement)


class Add(msgspec.Struct, tag=True, frozen=True):
    """New requests. Choices differ in id and seed alone: ``alike[i]`` has those of the ones that follow ``specs[i]``,
    so that a long prompt is sent once."""

    specs: list[RequestSpec]
    alike: dict[int, list[tuple[str, int]]] = {}

    @classmethod
    def of(cls, specs: list[RequestSpec]) -> Add:
        sent: list[RequestSpec] = []
        alike: dict[int, list[tuple[str, int]]] = {}
        for spec in specs:
            if sent and _equal_but_id_and_seed(sent[-1], spec):
                alike.setdefault(len(sent) - 1, []).append((spec.id, spec.seed))
            else:
                sent.append(spec)
        return cls(sent, alike)

    def ids(self) -> Iterator[str]:
        for i, spec in enumerate(self.specs):
            yield spec.id
            yield from (id for id, _ in self.alike.get(i, ()))

    def requests(self) -> Iterator[RequestSpec]:
        """All of them, in their order."""
        for i, spec in enumerate(self.specs):
            yield spec
            for id, seed in self.alike.get(i, ()):
                yield msgspec.structs.replace(spec, id=id, seed=seed)


def _equal_but_id_and_seed(first: RequestSpec, spec: RequestSpec) -> bool:
    names = (name for name in RequestSpec.__struct_fields__ if name not in ("id", "seed", "prompt"))
    return spec.prompt is first.prompt and all(getattr(spec, name) == getattr(first, name) for name in names)


class Abort(msgspec.Struct, tag=True, frozen=True):
    ids: list[str]


class Ping(msgspec.Struct, tag=True, frozen=True):
    pass


class ReportStats(msgspec.Struct, tag=True, frozen=True):
    """Answered by ``Stats`` before the next step."""


class ReleaseFrontend(msgspec.Struct, tag=True, frozen=True):
    """A frontend process has ended: aborts its requests, and ignores what it has sent."""

    name: str


class Stop(msgspec.Struct, tag=True, frozen=True):
    """End now, with exit code 0; whatever still runs is dropped. `reason` is for the log."""

    reason: str = ""


class LoadAdapter(msgspec.Struct, tag=True, frozen=True):
    """Loads an adapter, which requests may then name; answered by ``AdapterResult``."""

    name: str
    uri: str


class UnloadAdapter(msgspec.Struct, tag=True, frozen=True):
    """Unloads an adapter once no request uses it; answered then."""

    name: str


class StartProfile(msgspec.Struct, tag=True, frozen=True):
    """Records the steps from now on; answered by ``ProfileResult``."""

    directory: str


class StopProfile(msgspec.Struct, tag=True, frozen=True):
    """Writes the profile into the directory, or discards it; answered then."""

    keep: bool = True


Command = (
    Configure
    | Add
    | Abort
    | Ping
    | ReportStats
    | ReleaseFrontend
    | Stop
    | LoadAdapter
    | UnloadAdapter
    | StartProfile
    | StopProfile
)


class Loading(msgspec.Struct, tag=True, frozen=True):
    phase: str
    done_bytes: int
    total_bytes: int


class Heartbeat(msgspec.Struct, tag=True, frozen=True):
    """The backend's process runs. A thread of its own sends it, also while the engine compiles or captures graphs."""


class Ready(msgspec.Struct, tag=True, frozen=True):
    info: EngineInfo
    load_seconds: float


class Outputs(msgspec.Struct, tag=True, frozen=True):
    """Outputs of one step, of all requests."""

    outputs: list[EngineOutput]


class Stats(msgspec.Struct, tag=True, frozen=True):
    stats: EngineStats


class AdapterResult(msgspec.Struct, tag=True, frozen=True):
    """Result of loading or unloading an adapter."""

    name: str
    loaded: bool
    error: str | None = None


class ProfileResult(msgspec.Struct, tag=True, frozen=True):
    """Result of a profile request: the error, or the file once it is written."""

    file: str = ""
    error: str | None = None


class Fatal(msgspec.Struct, tag=True, frozen=True):
    """The backend exits. `sentence` is the reason, for users."""

    sentence: str


Event = Loading | Heartbeat | Ready | Outputs | Stats | AdapterResult | ProfileResult | Fatal
T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_hello: msgspec.msgpack.Decoder[Hello] = msgspec.msgpack.Decoder(Hello)
_command: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_event: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


def encode(message: Any) -> bytes:
    return _encoder.encode(message)


def decode_hello(data: bytes) -> Hello:
    """Raises ValueError for anything but a hello, and for one of another version, saying which."""
    hello = _decoded(_hello, data, "a hello of this protocol")
    if hello.version != VERSION:
        raise ValueError(f"a hello of version {hello.version}, while this frontend speaks version {VERSION}")
    return hello


def decode_command(data: bytes) -> Command:
    """Raises ValueError for anything but a command."""
    return _decoded(_command, data, "a command")


def decode_event(data: bytes) -> Event:
    """Raises ValueError for anything but an event."""
    return _decoded(_event, data, "an event")


def _decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes, what: str) -> T:
    """ValueError with one short line, whatever is wrong: deep nesting, for one, is no DecodeError."""
    try:
        return decoder.decode(data)
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"not {what}: {reason}") from None
