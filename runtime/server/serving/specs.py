"""A request for generation: its fields resolved, format and grammar checked, one engine request per completion."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence

import msgspec
from starlette.requests import Request

from runtime.errors import RequestError
from runtime.request.engine_messages import RequestSpec, StreamMode
from runtime.request.output import CompletionState
from runtime.request.resolve import RequestContext, expand_choices, resolve
from runtime.request.sampling_params import SamplingParams, stop_strings
from runtime.request.structured import FIELD, path_of
from runtime.server.serving.chat import ChatPrompt
from runtime.server.serving.context import ServingState
from runtime.server.serving.executors import api_key_id
from runtime.server.serving.generation import GenerationRequest, parse_response_format
from runtime.server.serving.job import GenerationJob
from runtime.server.serving.logprobs import PromptEcho, check_logprobs_limit
from runtime.server.serving.tools import ChatContext, ToolConfig
from runtime.structured_output.grammar_cache import GrammarError
from runtime.tokenizer import IncrementalDetokenizer

NO_LIMIT = -1  # max_tokens as llama.cpp's page and LM Studio send it
STRICT = "tools.function.strict"
MAX_GRAMMAR_CHECKS = 4  # of one request, each without the schemas that the one before rejected
PROMPTS_PER_STEP = 128  # prompts that are resolved before other requests are served


class Generation:
    """A request for generation, from its parsed body to the engine requests of its completions.

    A route sets the prompts and what else its API has, then submits it.

    Attributes:
        request: HTTP request.
        id: id of the response.
        model: name of the model or adapter.
        stream_mode: None for a response in one piece, "denoise" for an event per step, else text as it grows.
        loaded: engine info and tokenizer.
        n: completions per prompt.
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

    def __init__(self, state: ServingState, request: Request, body: GenerationRequest, prefix: str) -> None:
        """Creates a request without prompts. `prefix`: of the id of the response.

        Raises:
            RequestError: 400 for fields of streams alone, 404 for an unknown model.
            Unavailable: engine or tokenizer has not loaded yet.
        """
        self.request = request
        self.model = state.model_name(body.model)
        self.stream_mode = body.mode()
        self.loaded = self._info, self._tokenizer = state.require()
        self.id = prefix + uuid.uuid4().hex
        self.n = 1 if body.n is None else int(body.n)  # may be 1.0 where only 1 is supported
        self.prompts: Sequence[list[int]] = ()
        self.max_tokens: int | None = None
        self.default_max_tokens: int | None = None
        self.pinned_tokens: Mapping[int, int] | None = None
        self.text_limit: int | None = None
        self.chat: ChatContext | None = None
        self.echo: PromptEcho | None = None
        self.continued = False
        self.special_text: str | None = None
        self._state, self._body = state, body
        self._tenant = api_key_id(request)

    async def encode_chat(self, tools: ToolConfig, chat: ChatPrompt) -> None:
        """Sets the only prompt to the ids of a chat with its tools. Raises RequestError."""
        self.chat = ChatContext(self._state.config, *self.loaded, tools)
        self.prompts = [await self.chat.prompt(self.request, self._state.preprocessor, chat)]

    async def encode_prompts(
        self, prompts: Sequence[str | list[int]], *, parse_special: bool, suffix: str | None = None
    ) -> None:
        """Sets the prompts. Texts of special tokens in prompts or `suffix` are these tokens, or are reported."""
        preprocessor = self._state.preprocessor
        self.prompts = await preprocessor.encode_each(self.request, prompts, parse_special=parse_special)
        if not parse_special:
            texts = [text for text in (*prompts, suffix) if isinstance(text, str)]
            self.special_text = await preprocessor.find_special_text(self.request, texts)

    def pin_suffix(self, hole: int, suffix: Sequence[int]) -> None:
        """Sets the output to `hole` tokens before the token ids `suffix`, which are not returned."""
        self.max_tokens, self.text_limit = hole + len(suffix), hole
        self.pinned_tokens = {hole + i: token for i, token in enumerate(suffix)} or None

    async def submit(self) -> GenerationJob:
        """Validates the request and submits its completions to the engines. Raises RequestError."""
        self._read_fields()
        choices = self._completions(await self._build())
        scores = () if self.echo is None else list(self.echo.scores.values())
        streamed = self.stream_mode is not None
        prompts = len(self.prompts)
        return GenerationJob(
            self.id, self._state.engine_client, choices, streamed, prompts, scores, self._constraining_field
        )

    def _read_fields(self) -> None:
        """Reads the fields of the body. Raises RequestError for invalid values."""
        state, values, names = self._state, self._body.set_fields() | {"n": self.n}, self._body.names()
        scored = self.echo is not None and values.get("logprobs") is not None
        if len(self.prompts) * self.n + scored > 1:  # before the rest is built
            state.engine_client.check_count(len(self.prompts), self.n + scored)
        if self.max_tokens is not None:
            values["max_tokens"] = self.max_tokens
        if values.get("max_tokens") == NO_LIMIT:
            del values["max_tokens"]
        if values.get("max_tokens") is not None:
            name = names.get("max_tokens", "max_tokens")
            values["max_tokens"] = state.limit_tokens(self.request, values["max_tokens"], self._info, name)
        self._format, self._format_field = parse_response_format(self._body)
        values[FIELD] = self._format
        self._make_grammar()
        if self.chat is not None and self.chat.strict_unsupported:
            state.ignore(self.request, [STRICT])
        self._names = {FIELD: self._grammar_field, **names}
        self._params = SamplingParams(**values)
        self._stops = stop_strings(self._params.stop, self._names.get("stop", "stop"))

    @property
    def _constraining_field(self) -> str:
        """The field that requires the grammar, or the format from which the engine derives one."""
        if self._grammar or self._format is None:
            return self._grammar_field
        return path_of(self._format, self._format_field)

    async def _build(self) -> list[RequestSpec]:
        """Returns the specs ordered by prompt, then by number of the completion.

        Raises:
            RequestError: a value is invalid (400), or the queue is full (429).
            GrammarError: the grammar was rejected.
        """
        specs, witness, count = list[RequestSpec](), None, len(self.prompts) * self.n
        for i in range(len(self.prompts)):
            if i % PROMPTS_PER_STEP == PROMPTS_PER_STEP - 1:
                await asyncio.sleep(0)
            spec = self._resolve(i)
            if not i:  # the fields are valid; the rest is only built if it fits
                if count > 1 or spec.grammar:
                    self._state.engine_client.check_capacity(count, self._tenant)
                if spec.logprobs is not None:
                    check_logprobs_limit(spec, count, self._names.get("logprobs", "logprobs"))
                spec = await self._check_grammar(spec)
                witness = spec.witness
            elif spec.grammar:
                spec = msgspec.structs.replace(spec, witness=witness)
            specs += expand_choices(spec, self.n) if self.n > 1 else [spec]
        if specs[0].adapter:
            self._state.model_name(self.model)  # it may have been unloaded meanwhile
        return specs

    def _completions(self, specs: Sequence[RequestSpec]) -> list[CompletionState]:
        """Returns the state of each completion, and adds the scoring of echoed prompts to `echo`."""
        chat, stops, marks, found = self.chat, self._stops, self._state.part_marks, list[CompletionState]()
        constrained = bool(self._grammar) and not stops and not self._params.stop_token_ids
        continues = self.continued or (chat is not None and chat.continued)
        for i, spec in enumerate(specs):
            preamble = chat.preamble() if chat is not None and stops else None
            text = IncrementalDetokenizer(self._tokenizer, stops, self.text_limit, marks, preamble, continues=continues)
            parser = None
            if chat is not None:
                parser = chat.output_parser(constrained=constrained, streamed=self.stream_mode is not None)
            found.append(CompletionState(i, spec, text, parser))
        if self.echo is not None:
            self.echo.attach(found, self.n, *self.loaded)
        return found

    def _make_grammar(self) -> None:
        """Sets the grammar of the completions, "" for none, and the field that requests it."""
        self._grammar, self._grammar_field = "", self._format_field
        if self.chat is not None:
            self._grammar, self._grammar_field = self.chat.grammar(self._format, self._format_field)

    @property
    def _engine_stream_mode(self) -> StreamMode:
        if self.stream_mode == "denoise":
            return "denoise"
        single_call = self.chat is not None and self.chat.single_call
        ends_here = self._stops or self.text_limit is not None or single_call  # found in stable text
        return "stable" if self.stream_mode is not None or ends_here else "final"

    def _resolve(self, i: int) -> RequestSpec:
        """Resolves the spec of a prompt, without the grammar of strict tools if that is impossible."""
        try:
            return self._resolve_once(i)
        except RequestError as error:
            if self.chat is None or not self.chat.optional or error.param != self._grammar_field:
                raise
        self._drop_grammar()
        return self._resolve_once(i)

    def _resolve_once(self, i: int) -> RequestSpec:
        several = len(self.prompts) > 1
        context = RequestContext(
            id=f"{self.id}-{i}" if several else self.id,
            stream_mode=self._engine_stream_mode,
            default_max_tokens=self.default_max_tokens,
            names=self._names | {"prompt": f"prompt[{i}]"} if several else self._names,
            parent_id=self.id,
            tenant=self._tenant,
            adapter="" if self.model in self._state.names else self.model,
            pinned_tokens=self.pinned_tokens,
            grammar=self._grammar,
            tool_names=None if self._grammar or self.chat is None else self.chat.tool_names(),
        )
        return resolve(self._params, self.prompts[i], self._info, context)

    async def _check_grammar(self, spec: RequestSpec) -> RequestSpec:
        """Has the grammar compiled in the sandbox. Leaves out what was rejected where the request allows that."""
        chat, checks = self.chat, 0
        while spec.grammar:
            checks += 1
            try:
                check = self._state.preprocessor.check_grammar
                witness = await check(self.request, spec.grammar, self._constraining_field)
                return msgspec.structs.replace(spec, witness=None if witness is None else list(witness))
            except GrammarError as error:  # it may hide what the next check finds
                if chat is None or self._state.config.strict_fields:
                    raise
                if checks < MAX_GRAMMAR_CHECKS and self._drop_schemas(chat, error):
                    self._make_grammar()
                elif chat.optional and not error.wrong:
                    self._drop_grammar()
                else:
                    raise
                spec = self._resolve_once(0)
        return spec

    def _drop_schemas(self, chat: ChatContext, error: GrammarError) -> bool:
        """Leaves rejected schemas of tools out of the next grammar. Returns False if that is impossible."""
        if (fields := chat.leave_out_schemas(error.parts)) is None:
            return False
        if fields:
            self._state.ignore(self.request, fields)
        return True

    def _drop_grammar(self) -> None:
        self._state.ignore(self.request, [STRICT])
        self._grammar = ""
