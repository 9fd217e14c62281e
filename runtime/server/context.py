"""What every route needs: the models' names, the tokenizer, checked specs, jobs, and whether the server is draining."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from starlette.requests import Request

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.parsers import part_marks
from runtime.request.engine_messages import EngineInfo, RequestSpec, StreamMode
from runtime.request.output import CompletionState
from runtime.request.resolve import expand_choices, resolve
from runtime.request.sampling_params import MAX_COUNT, SamplingParams, stop_strings
from runtime.request.structured import FIELD, path_of
from runtime.request.validation import refuse
from runtime.server.engine_client.client import EngineClient, Unavailable
from runtime.server.engine_client.generation_job import GenerationJob, OutputDelta
from runtime.server.generate.protocol import GenerateRequest, InfillRequest
from runtime.server.http_responses import ClientGone, disconnected
from runtime.server.middleware.access_log import field_path
from runtime.server.middleware.auth import ApiKeys, api_key_id
from runtime.server.middleware.tracing import Tracing
from runtime.server.openai.chat_context import ChatContext
from runtime.server.openai.logprobs import check_logprobs_limit
from runtime.server.openai.prompt_echo import PromptEcho
from runtime.server.openai.protocol import GenerationRequest, OpenAIRequest
from runtime.server.preprocessing.preprocessor import Preprocessor
from runtime.server.preprocessing.request_body import CONTENT_ENCODING, B, codings, read_body
from runtime.server.preprocessing.response_format import GrammarValidator, parse_response_format
from runtime.server.schema_base import ignored_fields
from runtime.structured_output.grammar_cache import GrammarError
from runtime.tokenizer import IncrementalDetokenizer, Tokenizer

log = logging.getLogger("unmask.http")

STRICT = "tools.function.strict"
MAX_LOGGED_FIELDS = 256
MAX_LISTED_MODELS = 32  # models and adapters that a refusal names
MAX_CHECKS = 4  # of one request's grammar, each without the schemas that the one before refused
PROMPTS_PER_STEP = 128  # prompts that are checked at once


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

    def _drop_rejected_schemas(self, request: Request, chat: ChatContext, error: GrammarError) -> bool:
        """Whether the grammar can leave out the schemas of tools that were refused; names the fields ignored then."""
        if (fields := chat.leave_out_schemas(error.parts)) is None:
            return False
        for name in fields:
            self.ignore_field(request, name)
        return True

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

    async def job(
        self,
        request: Request,
        body: GenerationRequest,
        prompts: Sequence[list[int]],
        *,
        id: str,
        mode: str | None,
        names: Mapping[str, str] | None = None,
        default_max_tokens: int | None = None,
        max_tokens: int | None = None,
        n: int = 1,
        model: str | None = None,
        pinned_tokens: Mapping[int, int] | None = None,
        text_limit: int | None = None,
        chat: ChatContext | None = None,
        echo: PromptEcho | None = None,
        continued: bool = False,
    ) -> GenerationJob:
        """Check a body against the engine and set its requests going; choices are ordered by prompt, then by number.

        `mode`: None for an answer in one piece, "denoise" for every step, anything else for text as it grows.
        `model`: as `model_name` gave it. `given`: see `resolve`. `echo`: of prompts that are told as well.
        `most`: the answer's first so many tokens alone are told; it ends with them.
        `talk`: of a chat, whose answers have parts. `continued`: the answer continues a message of the prompt.
        """
        owner = api_key_id(request)
        continued = continued or (chat is not None and chat.continued)
        info, tokenizer = self.require()
        scored = echo is not None and body.set_fields().get("logprobs") is not None
        self.engine_client.check_count(len(prompts), n + scored)  # before anything is made of a great number
        values = body.set_fields() | {"n": n}
        if max_tokens is not None:
            values["max_tokens"] = max_tokens
        if values.get("max_tokens") is not None:
            name = (names or {}).get("max_tokens", "max_tokens")
            values["max_tokens"] = self.cap_max_tokens(request, values["max_tokens"], info, name)
        values[FIELD], format_field = parse_response_format(body)
        grammar, grammar_field = ("", format_field) if chat is None else chat.grammar(values[FIELD], format_field)
        if chat is not None and chat.strict_unsupported:
            self.ignore_field(request, STRICT)
        names = {FIELD: grammar_field, **(names or {})}
        params = SamplingParams(**values)
        stops = stop_strings(params.stop, names.get("stop", "stop"))
        stream_output: StreamMode = "denoise" if mode == "denoise" else "stable"
        ends_here = (
            stops or text_limit is not None or (chat is not None and chat.single)
        )  # is looked for in stable text
        if mode is None and not ends_here:
            stream_output = "final"
        specs: list[RequestSpec] = []
        adapter = "" if model is None or model in self.names else model
        for i, prompt in enumerate(prompts):
            if i % PROMPTS_PER_STEP == PROMPTS_PER_STEP - 1:
                await asyncio.sleep(0)  # others have their turn
            own = id if len(prompts) == 1 else f"{id}-{i}"
            here = dict(names)
            if len(prompts) > 1:
                here["prompt"] = f"prompt[{i}]"
            check = partial(
                resolve,
                params,
                prompt,
                info,
                id=own,
                stream_mode=stream_output,
                default_max_tokens=default_max_tokens,
                names=here,
                parent_id=id,
                tenant=owner,
                adapter=adapter,
                prefilled_tokens=pinned_tokens,
            )
            try:
                spec = check(grammar=grammar)
            except RequestError as error:
                if chat is None or not chat.optional or error.param != grammar_field:
                    raise
                self.ignore_field(request, STRICT)
                grammar = ""
                spec = check()
            if not i:  # the fields are right; all of it is made only where there is room
                self.engine_client.check_capacity(len(prompts) * n, owner)
                check_logprobs_limit(spec, len(prompts) * n, names.get("logprobs", "logprobs"))
            checks = 0
            while spec.grammar and not i:
                checks += 1
                try:
                    await self.grammar_validator.check(
                        request, spec.grammar, grammar_field if grammar else path_of(values[FIELD], format_field)
                    )
                    break
                except GrammarError as error:  # it may hide what the next check finds
                    if chat is None or self.config.strict_fields:
                        raise
                    if checks < MAX_CHECKS and self._drop_rejected_schemas(request, chat, error):
                        grammar, grammar_field = chat.grammar(values[FIELD], format_field)
                    elif chat.optional and not error.wrong:
                        self.ignore_field(request, STRICT)
                        grammar = ""
                    else:
                        raise
                    spec = check(grammar=grammar)
            specs += expand_choices(spec, n)
        self.model_name(model)  # an adapter may have gone meanwhile
        forms = {"exact": bool(grammar) and not stops and not params.stop_token_ids, "streamed": mode is not None}
        marks = part_marks()
        answers = []
        for i, spec in enumerate(specs):
            preamble = chat.preamble() if chat is not None and stops else None
            text = IncrementalDetokenizer(tokenizer, stops, text_limit, marks, preamble, continues=continued)
            answers.append(CompletionState(i, spec, text, None if chat is None else chat.parts(**forms)))
        if echo is not None:
            echo.attach(answers, n, info, tokenizer)
        scores = () if echo is None else echo.scores
        form_field = grammar_field if grammar else path_of(values[FIELD], format_field)
        return GenerationJob(
            id,
            self.engine_client,
            answers,
            streamed=mode is not None,
            prompts=len(prompts),
            scores=scores,
            form=form_field,
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
