"""How the project's own routes tell an answer: an event a step, or text as it grows, and the whole at the end."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from runtime.errors import RequestError
from runtime.request.output import append_event, denoise_event
from runtime.server.dialect import Dialect
from runtime.server.errors import of_error
from runtime.server.jobs import Job, Update
from runtime.server.responses import DONE, event


class OwnEvents(Dialect):
    """Events of docs/guide/streaming.md. `mode`: the stream_mode, or None for an answer that is not streamed."""

    def __init__(self, job: Job, mode: str | None) -> None:
        super().__init__(job, streams=mode is not None)
        self._make = denoise_event if mode == "denoise" else append_event

    @abstractmethod
    def whole(self) -> dict[str, Any]: ...

    def fields(self, update: Update) -> dict[str, Any] | None:
        """Of the event of a step; None where it has none."""
        return self._make(update.choice, update.output, update.text)

    def step(self, update: Update) -> bytes:
        fields = self.fields(update)
        return b"" if fields is None else event(fields)

    def end(self) -> bytes:
        return event({"event": "final", **self.whole()}) + DONE

    def failed(self, error: RequestError) -> bytes:
        return event({"event": "error", "id": self.job.id, **of_error(error)}) + DONE
