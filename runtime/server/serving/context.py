"""State that all routes share: the served model as requests see it, the drain, and ignored fields."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from runtime.parsers.formats import part_marks
from runtime.request.decoding import check_beside_decoding
from runtime.request.engine_messages import EngineInfo
from runtime.request.sampling_params import MAX_COUNT
from runtime.request.validation import refuse
from runtime.server.engine_client.client import EngineClient, Unavailable
from runtime.server.logs import field_path
from runtime.server.serving.generation import GenerationRequest
from runtime.server.serving.preprocessor import Preprocessor
from runtime.server.serving.request_body import B, ignored_fields
from runtime.tokenizer import Tokenizer

log = logging.getLogger("unmask.http")

MAX_LOGGED_FIELDS = 256
MAX_LISTED_MODELS = 32  # models and adapters that a refusal names


class ServingState:
    """What preparing a request needs of the server.

    Attributes:
        names: names of the model; responses have the first.
        tokenizer: None while it is loaded, in parallel with the engine.
    """

    def __init__(self, engine_client: EngineClient) -> None:
        self.engine_client = engine_client
        self.config = engine_client.config
        self.names = self.config.model_names
        self.tokenizer: Tokenizer | None = None
        self.preprocessor = Preprocessor(self.require)
        self.part_marks = part_marks()

    def require(self) -> tuple[EngineInfo, Tokenizer]:
        """Returns engine info and tokenizer. Raises Unavailable until both are loaded."""
        info = self.engine_client.require()
        if self.tokenizer is None:
            raise Unavailable("the tokenizer is being loaded; retry later")
        return info, self.tokenizer

    def model_name(self, name: str | None) -> str:
        """Returns the requested model or adapter name, by default the first model name. Raises RequestError 404."""
        if not name:
            return self.names[0]
        adapters = self.engine_client.adapters
        if name not in self.names and not adapters.is_available(name):
            every = [*self.names, *adapters.available]
            more = f" and {len(every) - MAX_LISTED_MODELS} more" if len(every) > MAX_LISTED_MODELS else ""
            known = ", ".join(every[:MAX_LISTED_MODELS]) + more
            shown = name if len(name) <= 80 else name[:77] + "..."
            raise refuse("model", f"{shown!r} is not served; available: {known}", status=404, code="model_not_found")
        return name

    def limit_tokens(self, request: Request, max_tokens: int, info: EngineInfo, name: str) -> int:
        """Returns the limit of an answer, at most the model's length: agents send the same number to every model.

        Args:
            request: Its answer's header names a limit that is too large.
            max_tokens: The limit that the client sent.
            info: Of the engine.
            name: The field as the client spelled it.

        Raises:
            RequestError: The limit is too large, and --strict-fields is set.
        """
        if not info.max_model_len < max_tokens <= MAX_COUNT:
            return max_tokens
        limit = f"{max_tokens} exceeds max_model_len {info.max_model_len}"
        self.ignore(request, [name], limit, "send a smaller value", code="context_length_exceeded", logged=False)
        return info.max_model_len

    def ignore(
        self, request: Request, names: Sequence[str], why: str = "cannot be honored for this request",
        fix: str = "leave it out", *, code: str | None = None, logged: bool = True,
    ) -> None:  # fmt: skip
        """Adds fields to the header X-Unmask-Ignored of the answer, and to the log if `logged`.

        Both only if the request is accepted. `why`, `fix`, `code`: of the RequestError that --strict-fields causes.
        """
        if self.config.strict_fields:
            raise refuse(names[0], f"{why} and is rejected by --strict-fields; {fix}", code=code)
        request.state.ignored = [*getattr(request.state, "ignored", ()), *names]
        if logged:
            request.state.unsupported = [*getattr(request.state, "unsupported", ()), *names]


class ServerContext(ServingState):
    """State of the server, as routes use it."""

    def __init__(self, engine_client: EngineClient) -> None:
        super().__init__(engine_client)
        self.created = int(time.time())
        self.draining = False
        self.logged_fields: set[str] = set()  # ignored fields that the log has named
        self.in_flight = 0  # HTTP requests being answered

    @property
    def ready(self) -> bool:
        client = self.engine_client
        loaded = self.tokenizer is not None and bool(client.ready) and client.adapters.settled
        return loaded and client.complete and not self.draining

    async def body(self, request: Request, kind: type[B]) -> B:
        """The parsed body. Raises RequestError 400, 408, 413, 415 or 429."""
        body = await self.preprocessor.parse(request, kind)
        # without `info`, `Generation` raises Unavailable
        if isinstance(body, GenerationRequest) and (info := self.engine_client.info) is not None:
            check_beside_decoding((name for name, value in (body.model_extra or {}).items() if value is not None), info)
        if unknown := ignored_fields(body):
            self.ignore(request, unknown, "is not supported by this route", code="unknown_field")
        return body

    def log_unsupported(self, names: Iterable[str]) -> None:
        """Logs each ignored field once, up to a limit so that clients cannot fill the log."""
        for name in names:
            if name not in self.logged_fields and len(self.logged_fields) < MAX_LOGGED_FIELDS:
                self.logged_fields.add(name)
                log.info("Ignoring unsupported request field %r (logged once)", field_path(name))


async def _context(request: Request) -> ServerContext:
    context: ServerContext = request.app.state.context
    return context


Context = Annotated[ServerContext, Depends(_context)]  # a parameter of FastAPI's routes
