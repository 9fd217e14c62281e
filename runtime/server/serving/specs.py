"""Engine requests of one HTTP request: values resolved, format and grammar checked, one spec per completion."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request

from runtime.errors import RequestError
from runtime.request.engine_messages import EngineInfo, RequestSpec, StreamMode
from runtime.request.output import CompletionState
from runtime.request.resolve import RequestContext, expand_choices, resolve
from runtime.request.sampling_params import SamplingParams, stop_strings
from runtime.request.structured import FIELD, path_of
from runtime.request.validation import preview, refuse
from runtime.server.env import backend_environment
from runtime.server.middleware.auth import api_key_id
from runtime.server.openai.protocol import FORMAT_ALIASES, GenerationRequest
from runtime.server.serving.executors import SingleThreadExecutor, cancel_on_disconnect
from runtime.server.serving.logprobs import PromptEcho, check_logprobs_limit
from runtime.server.serving.tools import ChatContext
from runtime.structured_output.gbnf import CheckResult
from runtime.structured_output.grammar_cache import GrammarError
from runtime.structured_output.sandbox import GrammarSandbox
from runtime.tokenizer import IncrementalDetokenizer, Tokenizer

if TYPE_CHECKING:
    from runtime.server.serving.context import ServerContext


NO_LIMIT = -1  # max_tokens as llama.cpp's page and LM Studio send it
STRICT = "tools.function.strict"
MAX_GRAMMAR_CHECKS = 4  # of one request, each without the schemas that the one before rejected
PROMPTS_PER_STEP = 128  # prompts that are resolved before other requests are served


@dataclass
class GenerationInputs:
    """A parsed request for generation.

    Attributes:
        request: HTTP request.
        body: parsed body.
        id: id of the response.
        model: name as `ServerContext.model_name` returned it.
        stream_mode: None for a response in one piece, "denoise" for an event per step, else text as it grows.
        loaded: engine info and tokenizer.
        prompts: token ids of each prompt.
        max_tokens: limit of the route; None for that of the body.
        default_max_tokens: limit of a request without one.
        pinned_tokens: fixed token ids by offset in the completion; see `RequestContext.pinned_tokens`.
        text_limit: number of first tokens that are returned; the completion ends with them.
        chat: context of a chat, whose completions have parts.
        echo: prompts that are returned before their completions.
        continued: the completion continues the last message of the prompt.
        special_text: special token whose text is in a prompt of text, where it is ordinary text.
    """

    request: Request
    body: GenerationRequest
    id: str
    model: str
    stream_mode: str | None
    loaded: tuple[EngineInfo, Tokenizer]
    prompts: Sequence[list[int]] = ()
    max_tokens: int | None = None
    default_max_tokens: int | None = None
    pinned_tokens: Mapping[int, int] | None = None
    text_limit: int | None = None
    chat: ChatContext | None = None
    echo: PromptEcho | None = None
    continued: bool = False
    special_text: str | None = None

    @property
    def n(self) -> int:
        """Completions per prompt."""
        return 1 if self.body.n is None else int(self.body.n)  # may be 1.0 where only 1 is supported

    @property
    def count(self) -> int:
        return len(self.prompts) * self.n


class RequestSpecBuilder:
    """Builds the engine requests of one HTTP request.

    Attributes:
        grammar: grammar of the completions, "" for none.
    """

    def __init__(self, context: ServerContext, inputs: GenerationInputs) -> None:
        """Raises RequestError if the values of the request are invalid."""
        self._context = context
        self._inputs = inputs
        self._info, self._tokenizer = inputs.loaded
        self._tenant = api_key_id(inputs.request)
        values, names = inputs.body.set_fields() | {"n": inputs.n}, inputs.body.names()
        scored = inputs.echo is not None and values.get("logprobs") is not None
        if inputs.count + scored > 1:  # before the rest is built
            context.engine_client.check_count(len(inputs.prompts), inputs.n + scored)
        if inputs.max_tokens is not None:
            values["max_tokens"] = inputs.max_tokens
        if values.get("max_tokens") == NO_LIMIT:
            del values["max_tokens"]
        if values.get("max_tokens") is not None:
            name = names.get("max_tokens", "max_tokens")
            values["max_tokens"] = context.cap_max_tokens(inputs.request, values["max_tokens"], self._info, name)
        self._format, self._format_field = parse_response_format(inputs.body)
        values[FIELD] = self._format
        self.grammar, self._grammar_field = self._make_grammar()
        if inputs.chat is not None and inputs.chat.strict_unsupported:
            context.ignore_field(inputs.request, STRICT)
        self._names = {FIELD: self._grammar_field, **names}
        self._params = SamplingParams(**values)
        self._stops: tuple[str, ...] = ()
        if self._params.stop is not None:
            self._stops = stop_strings(self._params.stop, self._names.get("stop", "stop"))

    @property
    def grammar_field(self) -> str:
        """The field that requires the grammar, or the format from which the engine derives one."""
        if self.grammar or self._format is None:
            return self._grammar_field
        return path_of(self._format, self._format_field)

    async def build(self) -> list[RequestSpec]:
        """Returns the specs ordered by prompt, then by number of the completion.

        Raises:
            RequestError: a value is invalid (400), or the queue is full (429).
            GrammarError: the grammar was rejected.
        """
        inputs, specs, witness = self._inputs, list[RequestSpec](), None
        for i in range(len(inputs.prompts)):
            if i % PROMPTS_PER_STEP == PROMPTS_PER_STEP - 1:
                await asyncio.sleep(0)
            spec = self._resolve(i)
            if not i:  # the fields are valid; the rest is only built if it fits
                if inputs.count > 1 or spec.grammar:
                    self._context.engine_client.check_capacity(inputs.count, self._tenant)
                if spec.logprobs is not None:
                    check_logprobs_limit(spec, inputs.count, self._names.get("logprobs", "logprobs"))
                spec = await self._check_grammar(spec)
                witness = spec.witness
            elif spec.grammar:
                spec = msgspec.structs.replace(spec, witness=witness)
            specs += expand_choices(spec, inputs.n) if inputs.n > 1 else [spec]
        if specs[0].adapter:
            self._context.model_name(inputs.model)  # it may have been unloaded meanwhile
        return specs

    def completions(self, specs: Sequence[RequestSpec]) -> list[CompletionState]:
        """Returns the state of each completion, and adds the scoring of echoed prompts to `inputs.echo`."""
        inputs, found = self._inputs, list[CompletionState]()
        chat, marks = inputs.chat, self._context.part_marks
        constrained = bool(self.grammar) and not self._stops and not self._params.stop_token_ids
        streamed = inputs.stream_mode is not None
        continues = inputs.continued or (chat is not None and chat.continued)
        for i, spec in enumerate(specs):
            preamble = chat.preamble() if chat is not None and self._stops else None
            text = IncrementalDetokenizer(
                self._tokenizer, self._stops, inputs.text_limit, marks, preamble, continues=continues
            )
            output_parser = None if chat is None else chat.output_parser(constrained=constrained, streamed=streamed)
            found.append(CompletionState(i, spec, text, output_parser))
        if inputs.echo is not None:
            inputs.echo.attach(found, inputs.n, self._info, self._tokenizer)
        return found

    def _make_grammar(self) -> tuple[str, str]:
        chat = self._inputs.chat
        return ("", self._format_field) if chat is None else chat.grammar(self._format, self._format_field)

    @cached_property
    def _engine_stream_mode(self) -> StreamMode:
        inputs = self._inputs
        if inputs.stream_mode == "denoise":
            return "denoise"
        single_call = inputs.chat is not None and inputs.chat.single_call
        ends_here = self._stops or inputs.text_limit is not None or single_call  # found in stable text
        return "stable" if inputs.stream_mode is not None or ends_here else "final"

    def _resolve(self, i: int) -> RequestSpec:
        """Resolves the spec of a prompt, without the grammar of strict tools if that is impossible."""
        chat = self._inputs.chat
        try:
            return self._resolve_once(i)
        except RequestError as error:
            if chat is None or not chat.optional or error.param != self._grammar_field:
                raise
        self._drop_grammar()
        return self._resolve_once(i)

    def _resolve_once(self, i: int) -> RequestSpec:
        inputs = self._inputs
        several = len(inputs.prompts) > 1
        context = RequestContext(
            id=f"{inputs.id}-{i}" if several else inputs.id,
            stream_mode=self._engine_stream_mode,
            default_max_tokens=inputs.default_max_tokens,
            names=self._names | {"prompt": f"prompt[{i}]"} if several else self._names,
            parent_id=inputs.id,
            tenant=self._tenant,
            adapter="" if inputs.model in self._context.names else inputs.model,
            pinned_tokens=inputs.pinned_tokens,
            grammar=self.grammar,
            tool_names=None if self.grammar or inputs.chat is None else inputs.chat.tool_names(),
        )
        return resolve(self._params, inputs.prompts[i], self._info, context)

    async def _check_grammar(self, spec: RequestSpec) -> RequestSpec:
        """Has the grammar compiled in the sandbox. Leaves out what was rejected where the request allows that."""
        inputs, checks = self._inputs, 0
        while spec.grammar:
            checks += 1
            try:
                validator = self._context.grammar_validator
                witness = await validator.check(inputs.request, spec.grammar, self.grammar_field)
                return msgspec.structs.replace(spec, witness=None if witness is None else list(witness))
            except GrammarError as error:  # it may hide what the next check finds
                if inputs.chat is None or self._context.config.strict_fields:
                    raise
                if checks < MAX_GRAMMAR_CHECKS and self._drop_schemas(inputs.chat, error):
                    self.grammar, self._grammar_field = self._make_grammar()
                elif inputs.chat.optional and not error.wrong:
                    self._drop_grammar()
                else:
                    raise
                spec = self._resolve_once(0)
        return spec

    def _drop_schemas(self, chat: ChatContext, error: GrammarError) -> bool:
        """Leaves rejected schemas of tools out of the next grammar. Returns False if that is impossible."""
        if (fields := chat.leave_out_schemas(error.parts)) is None:
            return False
        for name in fields:
            self._context.ignore_field(self._inputs.request, name)
        return True

    def _drop_grammar(self) -> None:
        self._context.ignore_field(self._inputs.request, STRICT)
        self.grammar = ""


# Keywords that determine the type of a value. Schemas with one of them get no type.
_TYPED = {"type", "enum", "const", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf"}
MAX_WAITING_GRAMMARS = 128  # of one API key, or of all clients of a server without keys


def parse_response_format(body: GenerationRequest) -> tuple[dict[str, Any] | None, str]:
    """Returns the format in the form of `structured_outputs`, None without one, and the field that requests it.

    Raises RequestError for conflicting or invalid formats.
    """
    found = {
        name: {kind: value} for name, (kind, _) in FORMAT_ALIASES.items() if (value := getattr(body, name)) is not None
    }
    asked = getattr(body, FIELD)
    if asked is not None:
        found[FIELD] = asked
    name, requested = body.format()
    if requested is not None and (made := _parse_openai_format(name, requested)) is not None:
        found[name] = made
    if not found:
        return None, FIELD
    first, *others = found
    for name in others:  # clients name one form in the ways of several servers
        if found[name] != found[first]:
            raise refuse(name, f"conflicts with {first}; send one of them")
    return found[first], first


def _parse_openai_format(name: str, requested: object) -> dict[str, Any] | None:
    """Parses OpenAI's `response_format`.

    A JSON schema is one level higher in `text.format` and `output_config.format`; some clients write it there in
    `response_format` too.
    """
    fields = requested if isinstance(requested, dict) else {}
    match fields.get("type"):
        case "text":
            return None
        case "json_object":
            schema = fields.get("schema")
            return {"json_object": True} if schema is None or schema is True else {"json": _object_schema(schema)}
        case "json_schema":
            described = fields.get("json_schema") or fields
            schema = described.get("schema") if isinstance(described, dict) else None
            if schema is None:
                raise refuse(name, "json_schema must be an object with a schema")
            return {"json": schema}
    raise refuse(name, f"{preview(requested)} is not supported; its type must be text, json_object or json_schema")


def _object_schema(schema: Any) -> Any:
    """Returns the schema of `json_object`, restricted to objects if it has no type."""
    if isinstance(schema, dict) and not _TYPED & schema.keys():
        return {"type": "object", **schema}
    return schema


class GrammarValidator:
    """Compiles grammars in the sandbox. `require` returns engine info and tokenizer, or raises Unavailable."""

    def __init__(self, require: Callable[[], tuple[EngineInfo, Tokenizer]]) -> None:
        self._require = require
        self._executor = SingleThreadExecutor("grammars", "grammars to compile", MAX_WAITING_GRAMMARS)
        self._sandbox: GrammarSandbox | None = None

    async def check(self, request: Request, grammar: str, param: str) -> tuple[int, ...] | None:
        """Returns a short output of a grammar, None if none was found. Other requests are served meanwhile.

        Raises:
            RequestError: no output can satisfy the grammar.
            ClientGone: the client disconnected. It leaves the queue.
        """
        if self._sandbox is None:
            info, tokenizer = self._require()
            self._sandbox = GrammarSandbox(tokenizer.directory, info, backend_environment(None))
        sandbox = self._sandbox
        result = sandbox.result(grammar)
        if result is None:

            def work(requested: Callable[[], bool]) -> CheckResult:
                return sandbox.check(grammar) if requested() else CheckResult()

            result = await cancel_on_disconnect(request, self._executor.run(len(grammar), work, api_key_id(request)))
        if result.reason:
            raise GrammarError(param, result.reason, result.parts, wrong=result.wrong)
        return result.witness
