"""What every route needs: the models' names, the tokenizer, checked specs, jobs, and whether the server is draining."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.requests import Request

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.request.engine_messages import EngineInfo
from runtime.request.sampling_params import MAX_COUNT
from runtime.request.validation import refuse
from runtime.server.engine_client.client import EngineClient, Unavailable
from runtime.server.engine_client.generation_job import GenerationJob, OutputDelta
from runtime.server.generate.protocol import GenerateRequest, InfillRequest
from runtime.server.http_responses import ClientGone, disconnected
from runtime.server.middleware.access_log import field_path
from runtime.server.middleware.auth import ApiKeys
from runtime.server.middleware.tracing import Tracing
from runtime.server.openai.protocol import OpenAIRequest
from runtime.server.preprocessing.preprocessor import Preprocessor
from runtime.server.preprocessing.request_body import CONTENT_ENCODING, B, codings, read_body
from runtime.server.preprocessing.request_specs import GenerationInputs, RequestSpecBuilder
from runtime.server.preprocessing.response_format import GrammarValidator
from runtime.server.schema_base import ignored_fields
from runtime.tokenizer import Tokenizer

log = logging.getLogger("unmask.http")

MAX_LOGGED_FIELDS = 256
MAX_LISTED_MODELS = 32  # models and adapters that a refusal names


class ServerContext:
    """The server's state as routes see it."""

    def __init__(self, config: ServerConfig, frontend: EngineClient, keys: ApiKeys) -> None:
        self.config = config
        self.engine_client = frontend
        self.request_metrics = frontend.request_metrics
        self.keys = keys
        self.names = config.model_names
        self.adapters = frontend.adapters
        self.tokenizer: Tokenizer | None = None  # loaded beside the engine
        self.preprocessor = Preprocessor(self.require)
        self.grammar_validator = GrammarValidator(self.require)
        self.created = int(time.time())
        self.draining = False
        self.tracing: Tracing | None = None
        self.logged_fields: set[str] = set()  # ignored fields that the log has named
        self.in_flight = 0  # HTTP requests being answered

    @property
    def ready(self) -> bool:
        loaded = self.tokenizer is not None and self.engine_client.available and self.adapters.settled
        return loaded and self.engine_client.complete and not self.draining

    def require(self) -> tuple[EngineInfo, Tokenizer]:
        """What answering takes. Raises Unavailable while it is not there."""
        info = self.engine_client.require()
        if self.tokenizer is None:
            raise Unavailable("the tokenizer is still being loaded")
        return info, self.tokenizer

    def model_name(self, name: str | None) -> str:
        """The served name that was asked for (the first without one), or an adapter's. Raises RequestError 404."""
        if name is None:
            return self.names[0]
        if name not in self.names and not self.adapters.is_available(name):
            every = [*self.names, *self.adapters.available]
            more = f" and {len(every) - MAX_LISTED_MODELS} more" if len(every) > MAX_LISTED_MODELS else ""
            known = ", ".join(every[:MAX_LISTED_MODELS]) + more
            shown = name if len(name) <= 80 else name[:77] + "..."
            raise RequestError(
                f"model: {shown!r} is not served here; there is {known}",
                param="model",
                status=404,
                code="model_not_found",
            )
        return name

    async def body(self, request: Request, kind: type[B]) -> B:
        """The parsed body. Raises RequestError 400, 408, 413, 415 or 429."""
        names = codings(request.headers.getlist(CONTENT_ENCODING))
        body = await self.preprocessor.parse(request, kind, await read_body(request), names)
        unknown = ignored_fields(body)
        if unknown and self.config.strict_fields:
            raise RequestError(
                f"{unknown[0]}: is not supported by this route, and --strict-fields is set; leave it out",
                param=unknown[0],
                code="unknown_field",
            )
        if unknown:
            request.state.ignored = unknown  # the gate has the answer's header name them
            self._log_ignored(unknown)
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
            raise RequestError(
                f"{name}: {max_tokens} is more than the model's length, {info.max_model_len}; ask for less, as "
                "--strict-fields is set",
                param=name,
                code="context_length_exceeded",
            )
        self._add_ignored(request, name)
        return info.max_model_len

    def ignore_field(self, request: Request, name: str) -> None:
        """A known field is not honoured here, and ignored like an unknown one. RequestError with --strict-fields."""
        if self.config.strict_fields:
            raise refuse(name, "cannot be kept to here, and --strict-fields is set; leave it out")
        self._add_ignored(request, name)
        self._log_ignored([name])

    @staticmethod
    def _add_ignored(request: Request, name: str) -> None:
        """Has the answer's header name a field."""
        request.state.ignored = [*getattr(request.state, "ignored", ()), name]

    def _log_ignored(self, unknown: list[str]) -> None:
        """Each name once in the log, of so many names that strangers cannot fill it."""
        for name in unknown:
            if name not in self.logged_fields and len(self.logged_fields) < MAX_LOGGED_FIELDS:
                self.logged_fields.add(name)
                log.info("clients send the field %s, which is not known and is ignored", field_path(name))

    @contextmanager
    def admission(self) -> Iterator[None]:
        """Around everything that happens before a request reaches an engine: refusals are counted."""
        try:
            yield
        except RequestError as error:
            self.request_metrics.requests.labels("aborted" if error.status == 499 else "refused").inc()
            raise

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
            scores=() if inputs.echo is None else inputs.echo.scores,
            form=builder.grammar_field,
        )


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def stream_mode(body: GenerateRequest | InfillRequest | OpenAIRequest, default: str = "block_append") -> str | None:
    """What a stream shows; None for an answer in one piece. Raises RequestError for stream fields without a stream."""
    if body.stream:
        return body.stream_mode or default
    for field in ("stream_mode", "stream_options"):
        if getattr(body, field, None) is not None:
            raise RequestError(f"{field}: only with stream true; leave it out", param=field)
    return None


async def run_to_completion(request: Request, job: GenerationJob, take: Callable[[OutputDelta], None]) -> None:
    """Wait for a job's end, and `take` what comes; a client that goes away ends it at once. Raises RequestError."""

    async def watch() -> None:
        await disconnected(request.receive)
        job.output_queue.put(ClientGone())

    request.state.job = job  # the log tells of it
    watcher = asyncio.create_task(watch())
    try:
        async for batch in job.updates():
            for update in batch:
                take(update)
    finally:
        watcher.cancel()
