"""What OpenAI's chat and completions tell alike: an object of choices, chunks of it, and the usage."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

from runtime.errors import RequestError
from runtime.server.dialect import Dialect
from runtime.server.errors import of_error
from runtime.server.jobs import Job
from runtime.server.responses import DONE, event
from runtime.server.schemas import OpenAIRequest


class Told(NamedTuple):
    """What a request says of how its answer is told."""

    model: str
    streams: bool
    usage: bool  # a stream ends with it
    counts: bool  # and every chunk of it tells how far it is: with that at its end alone, as others have it
    denoise: bool  # a stream tells every step

    @classmethod
    def of(cls, body: OpenAIRequest, model: str, mode: str | None) -> Told:
        options = body.stream_options
        usage = options is not None and bool(options.include_usage)
        counts = usage and options is not None and bool(options.continuous_usage_stats)
        return cls(model, mode is not None, usage, counts, mode == "denoise")


class OpenAIEvents(Dialect):
    """Chunks of choices, and the usage where it is wanted."""

    object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, job: Job, told: Told) -> None:
        super().__init__(job, streams=told.streams)
        self.told = told
        self._head = {"id": job.id, "created": int(time.time()), "model": told.model}
        self._base: dict[str, Any] = {**self._head, "object": self.chunk_object}
        if told.usage:
            self._base["usage"] = None  # all chunks but the last, as OpenAI has it

    @abstractmethod
    def choices(self) -> list[dict[str, Any]]:
        """Of the answer in one piece."""

    def whole(self) -> dict[str, Any]:
        return {**self._head, "object": self.object, "choices": self.choices(), "usage": self.job.usage()}

    def chunk(self, choice: dict[str, Any], **more: Any) -> bytes:
        if self.told.counts:
            more["usage"] = self.job.usage()
        return event({**self._base, "choices": [choice], **more})

    def end(self) -> bytes:
        if not self.told.usage:
            return DONE
        return event({**self._base, "choices": [], "usage": self.job.usage()}) + DONE

    def failed(self, error: RequestError) -> bytes:
        return event(of_error(error)) + DONE
