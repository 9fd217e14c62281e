"""What every route needs: the models' names, the tokenizer, checked specs, jobs, and whether the server is draining."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from starlette.requests import Request

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.parsers import part_marks
from runtime.request.engine_messages import EngineInfo, RequestSpec, StreamMode
from runtime.request.output import CompletionState
from runtime.request.resolve import RequestContext, expand_choices, resolve
from runtime.request.sampling_params import MAX_COUNT, SamplingParams, stop_strings
from runtime.request.structured import FIELD, path_of
from runtime.request.validation import refuse
from runtime.server.bodies import read_body
from runtime.server.content_encoding import NAME, codings
from runtime.server.echo import Echo
from runtime.server.fields import ignored
from runtime.server.frontend import Frontend, Unavailable
from runtime.server.jobs import ClientGone, Job, Update, disconnected
from runtime.server.keys import Keys, owner_of
from runtime.server.logprobs import check_told
from runtime.server.preparing import Preparer
from runtime.server.redaction import field_path
from runtime.server.schemas import GenerateRequest, Generation, InfillRequest, OpenAIRequest
from runtime.server.structured import FormChecker, form
from runtime.server.talking import Talk
from runtime.server.tracing import Tracing
from runtime.server.validating import B
from runtime.structured_output.grammar_cache import GrammarError
from runtime.tokenizer import IncrementalDetokenizer, Tokenizer

log = logging.getLogger("unmask.http")

STRICT = "tools.function.strict"
MOST_TOLD = 256
MOST_NAMED = 32  # models and adapters that a refusal names
MAX_CHECKS = 4  # of one request's grammar, each without the schemas that the one before refused
BATCH = 128  # prompts that are checked at once


class Service:
    """The server's state as routes see it."""

    def __init__(self, config: ServerConfig, frontend: Frontend, keys: Keys) -> None:
        self.config = config
        self.frontend = frontend
        self.observed = frontend.observed
        self.keys = keys
        self.names = config.model_names
        self.adapters = frontend.adapters
        self.tokenizer: Tokenizer | None = None  # loaded beside the engine
        self.preparer = Preparer(self.require)
        self.forms = FormChecker(self.require)
        self.created = int(time.time())
        self.draining = False
        self.tracing: Tracing | None = None
        self.told: set[str] = set()  # ignored fields that the log has named
        self.in_flight = 0  # HTTP requests being answered

    @property
    def ready(self) -> bool:
        loaded = self.tokenizer is not None and self.frontend.available and self.adapters.settled
        return loaded and self.frontend.complete and not self.draining

    def require(self) -> tuple[EngineInfo, Tokenizer]:
        """What answering takes. Raises Unavailable while it is not there."""
        info = self.frontend.require()
        if self.tokenizer is None:
            raise Unavailable("the tokenizer is still being loaded")
        return info, self.tokenizer

    def model_name(self, name: str | None) -> str:
        """The served name that was asked for (the first without one), or an adapter's. Raises RequestError 404."""
        if name is None:
            return self.names[0]
        if name not in self.names and not self.adapters.offers(name):
            every = [*self.names, *self.adapters.offered]
            more = f" and {len(every) - MOST_NAMED} more" if len(every) > MOST_NAMED else ""
            known = ", ".join(every[:MOST_NAMED]) + more
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
        names = codings(request.headers.getlist(NAME))
        body = await self.preparer.parse(request, kind, await read_body(request), names)
        unknown = ignored(body)
        if unknown and self.config.strict_fields:
            raise RequestError(
                f"{unknown[0]}: is not supported by this route, and --strict-fields is set; leave it out",
                param=unknown[0],
                code="unknown_field",
            )
        if unknown:
            request.state.ignored = unknown  # the gate has the answer's header name them
            self._tell(unknown)
        return body

    def limited(self, request: Request, max_tokens: int, info: EngineInfo, name: str) -> int:
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

    def leave_out(self, request: Request, name: str) -> None:
        """A known field is not honoured here, and ignored like an unknown one. RequestError with --strict-fields."""
        if self.config.strict_fields:
            raise refuse(name, "cannot be kept to here, and --strict-fields is set; leave it out")
        self._add_ignored(request, name)
        self._tell([name])

    @staticmethod
    def _add_ignored(request: Request, name: str) -> None:
        """Has the answer's header name a field."""
        request.state.ignored = [*getattr(request.state, "ignored", ()), name]

    def _without_refused(self, request: Request, chat: Talk, error: GrammarError) -> bool:
        """Whether the grammar can leave out the schemas of tools that were refused; names the fields ignored then."""
        if (fields := chat.leave_out_schemas(error.parts)) is None:
            return False
        for name in fields:
            self.leave_out(request, name)
        return True

    def _tell(self, unknown: list[str]) -> None:
        """Each name once in the log, of so many names that strangers cannot fill it."""
        for name in unknown:
            if name not in self.told and len(self.told) < MOST_TOLD:
                self.told.add(name)
                log.info("clients send the field %s, which is not known and is ignored", field_path(name))

    @contextmanager
    def admission(self) -> Iterator[None]:
        """Around everything that happens before a request reaches an engine: refusals are counted."""
        try:
            yield
        except RequestError as error:
            self.observed.requests.labels("aborted" if error.status == 499 else "refused").inc()
            raise

    async def job(
        self,
        request: Request,
        body: Generation,
        prompts: Sequence[list[int]],
        *,
        id: str,
        mode: str | None,
        names: Mapping[str, str] | None = None,
        default_max_tokens: int | None = None,
        max_tokens: int | None = None,
        n: int = 1,
        model: str | None = None,
        given: Mapping[int, int] | None = None,
        most: int | None = None,
        talk: Talk | None = None,
        echo: Echo | None = None,
        continued: bool = False,
    ) -> Job:
        """Check a body against the engine and set its requests going; choices are ordered by prompt, then by number.

        `mode`: None for an answer in one piece, "denoise" for every step, anything else for text as it grows.
        `model`: as `model_name` gave it. `given`: see `RequestContext.prefilled_tokens`.
        `echo`: of prompts that are told as well.
        `most`: the answer's first so many tokens alone are told; it ends with them.
        `talk`: of a chat, whose answers have parts. `continued`: the answer continues a message of the prompt.
        """
        owner = owner_of(request)
        continued = continued or (talk is not None and talk.continued)
        info, tokenizer = self.require()
        scored = echo is not None and body.asked().get("logprobs") is not None
        self.frontend.check_count(len(prompts), n + scored)  # before anything is made of a great number
        asked = body.asked() | {"n": n}
        if max_tokens is not None:
            asked["max_tokens"] = max_tokens
        if asked.get("max_tokens") is not None:
            name = (names or {}).get("max_tokens", "max_tokens")
            asked["max_tokens"] = self.limited(request, asked["max_tokens"], info, name)
        asked[FIELD], named = form(body)
        made, holder = ("", named) if talk is None else talk.grammar(asked[FIELD], named)
        if talk is not None and talk.unheld:
            self.leave_out(request, STRICT)
        names = {FIELD: holder, **(names or {})}
        params = SamplingParams(**asked)
        stops = stop_strings(params.stop, names.get("stop", "stop"))
        report: StreamMode = "denoise" if mode == "denoise" else "stable"
        ends_here = stops or most is not None or (talk is not None and talk.single)  # is looked for in stable text
        if mode is None and not ends_here:
            report = "final"
        specs: list[RequestSpec] = []
        adapter = "" if model is None or model in self.names else model
        for i, prompt in enumerate(prompts):
            if i % BATCH == BATCH - 1:
                await asyncio.sleep(0)  # others have their turn
            own = id if len(prompts) == 1 else f"{id}-{i}"
            here = dict(names)
            if len(prompts) > 1:
                here["prompt"] = f"prompt[{i}]"
            context = RequestContext(
                id=own,
                stream_mode=report,
                default_max_tokens=default_max_tokens,
                names=here,
                parent_id=id,
                tenant=owner,
                adapter=adapter,
                prefilled_tokens=given,
            )
            try:
                spec = resolve(params, prompt, info, replace(context, grammar=made))
            except RequestError as error:
                if talk is None or not talk.optional or error.param != holder:
                    raise
                self.leave_out(request, STRICT)
                made = ""
                spec = resolve(params, prompt, info, context)
            if not i:  # the fields are right; all of it is made only where there is room
                self.frontend.check_room(len(prompts) * n, owner)
                check_told(spec, len(prompts) * n, names.get("logprobs", "logprobs"))
            checks = 0
            while spec.grammar and not i:
                checks += 1
                try:
                    await self.forms.check(request, spec.grammar, holder if made else path_of(asked[FIELD], named))
                    break
                except GrammarError as error:  # it may hide what the next check finds
                    if talk is None or self.config.strict_fields:
                        raise
                    if checks < MAX_CHECKS and self._without_refused(request, talk, error):
                        made, holder = talk.grammar(asked[FIELD], named)
                    elif talk.optional and not error.wrong:
                        self.leave_out(request, STRICT)
                        made = ""
                    else:
                        raise
                    spec = resolve(params, prompt, info, replace(context, grammar=made))
            specs += expand_choices(spec, n)
        self.model_name(model)  # an adapter may have gone meanwhile
        forms = {"exact": bool(made) and not stops and not params.stop_token_ids, "streamed": mode is not None}
        marks = part_marks()
        answers = []
        for i, spec in enumerate(specs):
            preamble = talk.preamble() if talk is not None and stops else None
            text = IncrementalDetokenizer(tokenizer, stops, most, marks, preamble, continues=continued)
            answers.append(CompletionState(i, spec, text, None if talk is None else talk.parts(**forms)))
        if echo is not None:
            echo.take(answers, n, info, tokenizer)
        scores = () if echo is None else echo.scores
        form_field = holder if made else path_of(asked[FIELD], named)
        return Job(
            id, self.frontend, answers, streamed=mode is not None, prompts=len(prompts), scores=scores, form=form_field
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


async def answered(request: Request, job: Job, take: Callable[[Update], None]) -> None:
    """Wait for a job's end, and `take` what comes; a client that goes away ends it at once. Raises RequestError."""

    async def watch() -> None:
        await disconnected(request.receive)
        job.inbox.put(ClientGone())

    request.state.job = job  # the log tells of it
    watcher = asyncio.create_task(watch())
    try:
        async for batch in job.updates():
            for update in batch:
                take(update)
    finally:
        watcher.cancel()
