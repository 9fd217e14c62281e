"""What the head, which has the backends and the table of all requests, and a frontend process say to each other.

News of requests, and the word that one is not wanted any more, are those of ``messages``.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.request.engine_messages import EngineInfo
from runtime.server.engine_client.adapter_registry import AdapterEntry
from runtime.server.engine_client.ipc_protocol import Abort, Add, Outputs


class Refusal(msgspec.Struct, frozen=True):
    """A RequestError on its way."""

    message: str
    param: str | None
    status: int
    code: str | None

    @classmethod
    def of(cls, error: RequestError) -> Refusal:
        return cls(error.message, error.param, error.status, error.code)

    def error(self) -> RequestError:
        return RequestError(self.message, param=self.param, status=self.status, code=self.code)


# -- from the head


class Begin(msgspec.Struct, tag=True, frozen=True):
    """The first word: what to serve, as which of so many processes, and the file of the board."""

    config: ServerConfig
    index: int
    board: str


class Facts(msgspec.Struct, frozen=True):
    """What every process knows of the engines."""

    info: EngineInfo | None
    ready: list[int]
    progress: tuple[str, int, int]
    adapters: dict[str, AdapterEntry]
    settled: bool
    complete: bool  # every process can serve, or could once


class Known(msgspec.Struct, tag=True, frozen=True):
    """How it is now; answered by ``Heard`` with its number."""

    number: int
    facts: Facts


class Failed(msgspec.Struct, tag=True, frozen=True):
    """These requests have ended."""

    ids: list[str]
    refusal: Refusal


class Answer(msgspec.Struct, tag=True, frozen=True):
    """To an ``Ask``."""

    number: int
    value: Any = None
    refusal: Refusal | None = None


class Observe(msgspec.Struct, tag=True, frozen=True):
    """Tell what was observed so far; answered by ``Observations``."""


class Goodbye(msgspec.Struct, tag=True, frozen=True):
    """The server drains: answer on, and let every connection go with its answer."""


class Finish(msgspec.Struct, tag=True, frozen=True):
    """No connection comes any more: end once all answers are given, or --drain-timeout is over."""


class Stop(msgspec.Struct, tag=True, frozen=True):
    """End now."""


# -- to the head


class Up(msgspec.Struct, tag=True, frozen=True):
    """Connections are welcome."""


class Able(msgspec.Struct, tag=True, frozen=True):
    """Requests are too: the tokenizer is there."""


class Heard(msgspec.Struct, tag=True, frozen=True):
    number: int


class Submit(msgspec.Struct, tag=True, frozen=True):
    """Requests, one ``Add`` for each HTTP request."""

    jobs: list[Add]


class Ask(msgspec.Struct, tag=True, frozen=True):
    """Something that the head alone can do."""

    number: int
    what: Literal["metrics", "load_adapter", "unload_adapter", "start_profile", "stop_profile"]
    words: list[str] = []


class Observations(msgspec.Struct, tag=True, frozen=True):
    """By metric: its name, its type, its help, and its samples: name, labels and value of each."""

    metrics: list[tuple[str, str, str, list[tuple[str, dict[str, str], float]]]]


class GaveUp(msgspec.Struct, tag=True, frozen=True):
    """The process cannot serve; the sentence says why, for the person who started the server."""

    sentence: str


FromHead = Begin | Known | Outputs | Failed | Answer | Observe | Goodbye | Finish | Stop
ToHead = Up | Able | Heard | Submit | Abort | Ask | Observations | GaveUp

from_head: msgspec.msgpack.Decoder[FromHead] = msgspec.msgpack.Decoder(FromHead)
to_head: msgspec.msgpack.Decoder[ToHead] = msgspec.msgpack.Decoder(ToHead)
