"""How the project's own routes tell an answer: an event a step, or text as it grows, and the whole at the end."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from runtime.errors import RequestError
from runtime.request.output import append_event, denoise_event
from runtime.server.dialect import ServingHandler
from runtime.server.errors import openai_error
from runtime.server.jobs import GenerationJob, OutputDelta
from runtime.server.responses import DONE, event


class GenerateEvents(ServingHandler):
    """Events of docs/server.md#streaming. `mode`: the stream_mode, or None for an answer that is not streamed."""

    def __init__(self, job: GenerationJob, mode: str | None) -> None:
        super().__init__(job, streams=mode is not None)
        self._make = denoise_event if mode == "denoise" else append_event

    @abstractmethod
    def full_response(self) -> dict[str, Any]: ...

    def event_fields(self, update: OutputDelta) -> dict[str, Any] | None:
        """Of the event of a step; None where it has none."""
        return self._make(update.choice, update.output, update.text)

    def on_output(self, update: OutputDelta) -> bytes:
        fields = self.event_fields(update)
        return b"" if fields is None else event(fields)

    def on_finish(self) -> bytes:
        return event({"event": "final", **self.full_response()}) + DONE

    def on_error(self, error: RequestError) -> bytes:
        return event({"event": "error", "id": self.job.id, **openai_error(error)}) + DONE
