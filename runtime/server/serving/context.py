"""State that all routes share: model names, tokenizer, adapters, submission of requests, and the drain."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable
from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from runtime.config import ServerConfig
from runtime.parsers.formats import part_marks
from runtime.request.decoding import check_beside_decoding
from runtime.request.engine_messages import EngineInfo
from runtime.request.sampling_params import MAX_COUNT
from runtime.request.validation import refuse
from runtime.server.engine_client.client import EngineClient, Unavailable
from runtime.server.logs import field_path
from runtime.server.middleware.auth import ApiKeys
from runtime.server.middleware.tracing import Tracing
from runtime.server.openai.protocol import ChatPrompt, GenerationRequest
from runtime.server.serving.job import GenerationJob
from runtime.server.serving.preprocessor import Preprocessor
from runtime.server.serving.request_body import B, ignored_fields
from runtime.server.serving.specs import GenerationInputs, GrammarValidator, RequestSpecBuilder
from runtime.server.serving.tools import ChatContext, ToolConfig
from runtime.tokenizer import Tokenizer

log = logging.getLogger("unmask.http")

MAX_LOGGED_FIELDS = 256
MAX_LISTED_MODELS = 32  # models and adapters that a refusal names


class ServerContext:
    """State of the server, as routes use it."""

    def __init__(self, config: ServerConfig, frontend: EngineClient, keys: ApiKeys) -> None:
        self.config = config
        self.engine_client = frontend
        self.request_metrics = frontend.request_metrics
        self.keys = keys
        self.names = config.model_names
        self.adapters = frontend.adapters
        self.tokenizer: Tokenizer | None = None  # loaded in parallel with the engine
        self.preprocessor = Preprocessor(self.require)
        self.grammar_validator = GrammarValidator(self.require)
        self.part_marks = part_marks()
        self.created = int(time.time())
        self.draining = False
        self.tracing: Tracing | None = None
        self.logged_fields: set[str] = set()  # ignored fields that the log has named
        self.in_flight = 0  # HTTP requests being answered

    @property
    def ready(self) -> bool:
        client = self.engine_client
        loaded = self.tokenizer is not None and bool(client.ready) and self.adapters.settled
        return loaded and client.complete and not self.draining

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
        if name not in self.names and not self.adapters.is_available(name):
            every = [*self.names, *self.adapters.available]
            more = f" and {len(every) - MAX_LISTED_MODELS} more" if len(every) > MAX_LISTED_MODELS else ""
            known = ", ".join(every[:MAX_LISTED_MODELS]) + more
            shown = name if len(name) <= 80 else name[:77] + "..."
            raise refuse("model", f"{shown!r} is not served; available: {known}", status=404, code="model_not_found")
        return name

    async def body(self, request: Request, kind: type[B]) -> B:
        """The parsed body. Raises RequestError 400, 408, 413, 415 or 429."""
        body = await self.preprocessor.parse(request, kind)
        # without `info`, `begin` raises Unavailable
        if isinstance(body, GenerationRequest) and (info := self.engine_client.info) is not None:
            check_beside_decoding((name for name, value in (body.model_extra or {}).items() if value is not None), info)
        unknown = ignored_fields(body)
        if unknown and self.config.strict_fields:
            sentence = "is not supported by this route and rejected by --strict-fields; leave it out"
            raise refuse(unknown[0], sentence, code="unknown_field")
        if unknown:
            self._add_ignored(request, unknown)
            self._add_unsupported(request, unknown)
        return body

    def cap_max_tokens(self, request: Request, max_tokens: int, info: EngineInfo, name: str) -> int:
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
        if self.config.strict_fields:
            limit = f"max_model_len {info.max_model_len} and is rejected by --strict-fields"
            raise refuse(name, f"{max_tokens} exceeds {limit}; send a smaller value", code="context_length_exceeded")
        self._add_ignored(request, [name])
        return info.max_model_len

    def ignore_field(self, request: Request, name: str) -> None:
        """Ignores a known field like an unsupported one. Raises RequestError with --strict-fields."""
        if self.config.strict_fields:
            raise refuse(name, "cannot be honored for this request and is rejected by --strict-fields; leave it out")
        self._add_ignored(request, [name])
        self._add_unsupported(request, [name])

    @staticmethod
    def _add_ignored(request: Request, names: list[str]) -> None:
        """Adds fields to the header X-Unmask-Ignored of the response, unless the request is rejected."""
        request.state.ignored = [*getattr(request.state, "ignored", ()), *names]

    @staticmethod
    def _add_unsupported(request: Request, names: list[str]) -> None:
        """Adds fields that `log_unsupported` logs once the request is accepted."""
        request.state.unsupported = [*getattr(request.state, "unsupported", ()), *names]

    def log_unsupported(self, names: Iterable[str]) -> None:
        """Logs each ignored field once, up to a limit so that clients cannot fill the log."""
        for name in names:
            if name not in self.logged_fields and len(self.logged_fields) < MAX_LOGGED_FIELDS:
                self.logged_fields.add(name)
                log.info("Ignoring unsupported request field %r (logged once)", field_path(name))

    def begin(self, request: Request, body: GenerationRequest, prefix: str) -> GenerationInputs:
        """Returns a request for generation that has no prompt yet. Raises RequestError and Unavailable.

        `prefix`: of the id of the response.
        """
        model = self.model_name(body.model)
        return GenerationInputs(request, body, prefix + uuid.uuid4().hex, model, body.mode(), self.require())

    async def encode_chat(
        self, request: Request, loaded: tuple[EngineInfo, Tokenizer], tools: ToolConfig, chat: ChatPrompt
    ) -> tuple[ChatContext, list[list[int]]]:
        """Returns the context of a chat, and its ids as the only prompt. Raises RequestError.

        `loaded`: engine info and tokenizer, as `require` returns them.
        """
        made = ChatContext(self.config, *loaded, tools)
        return made, [await made.prompt(request, self.preprocessor, chat)]

    async def submit(self, inputs: GenerationInputs) -> GenerationJob:
        """Validates a request and submits its completions to the engines. Raises RequestError."""
        builder = RequestSpecBuilder(self, inputs)
        completions = builder.completions(await builder.build())
        return GenerationJob(
            inputs.id,
            self.engine_client,
            completions,
            streamed=inputs.stream_mode is not None,
            prompts=len(inputs.prompts),
            scores=() if inputs.echo is None else list(inputs.echo.scores.values()),
            form=builder.grammar_field,
        )


async def _context(request: Request) -> ServerContext:
    context: ServerContext = request.app.state.context
    return context


Context = Annotated[ServerContext, Depends(_context)]  # a parameter of FastAPI's routes
