"""``LLM``: the engine in the caller's process (docs/get-started/laptop.md#without-a-server)."""

from __future__ import annotations

import itertools
import os
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import torch

from runtime.config import EngineConfig
from runtime.decisions.questions import MAX_QUESTIONS, Answer, Question, as_text
from runtime.engine.engine import Engine
from runtime.engine.setup import load_engine
from runtime.errors import RequestError
from runtime.kernels.segments import Segment
from runtime.parsers.formats import part_marks
from runtime.plugins import load_plugins
from runtime.request.engine_messages import EngineInfo, EngineOutput, RequestSpec, StreamMode
from runtime.request.output import (
    CompletionState,
    GenerationOutput,
    TextBuilder,
    TokenLogprob,
    append_event,
    denoise_event,
)
from runtime.request.resolve import (
    MAX_TOKENS_PER_STEP,
    RequestContext,
    check_ids,
    check_prompt,
    expand_choices,
    resolve,
    score_spec,
)
from runtime.request.sampling_params import MAX_LOGPROBS, SamplingParams, stop_strings
from runtime.request.structured import FIELD, path_of
from runtime.request.validation import integer, refuse
from runtime.scheduling.request import Request
from runtime.scheduling.step_plan import StepPlan
from runtime.scheduling.strategy import VisibleKeys
from runtime.structured_output.grammar_cache import GrammarError
from runtime.structured_output.sandbox import GrammarSandbox
from runtime.weights.checkpoint import resolve_text_files
from runtime.worker.model_runner import SupportsLogits

if TYPE_CHECKING:
    from runtime.executor.executor import MultiprocExecutor
    from runtime.tokenizer import Tokenizer


def forward_logits(engine: Engine, ids: list[int], block_size: int | None = None, adapter: str = "") -> torch.Tensor:
    """Returns logits [len(ids), vocab] on the CPU.

    Args:
        engine: The engine. The forward uses a separate KV pool.
        ids: Token ids.
        block_size: use block-causal attention with blocks of this size. None: the strategy's attention within prompts.
        adapter: name of a LoRA adapter.

    Raises:
        RequestError: the ids are invalid, or all LoRA slots are in use.
        TypeError: the runner has no model.
    """
    runner = engine.runner
    if not isinstance(runner, SupportsLogits):
        raise TypeError("the runner has no model")
    if not ids:
        raise refuse("prompt", "is empty; give at least one token")
    last = engine.info.vocab_size - 1
    for i, token in enumerate(ids):
        integer(f"prompt[{i}]", token, 0, last)
    if block_size is not None:
        integer("block_size", block_size, 1, 2**31)
    page_size = engine.info.page_size
    pages = -(-len(ids) // page_size)
    keys, editable_start = VisibleKeys(0, block_size or 1), 0
    if block_size is None:
        spec = RequestSpec(id="", prompt=ids, max_tokens=0, decoding=engine.info.defaults())
        request = Request(
            spec, size=len(ids), num_final_tokens=len(ids), mask_id=engine.info.mask_token_id or 0, arrival_index=0,
            get_algorithm=engine.get_algorithm,
        )  # fmt: skip
        keys, editable_start = engine.strategy.visible_keys(request, len(ids)), len(ids)
    segment = Segment(0, 0, len(ids), *keys, visible_limit=len(ids), editable_start=editable_start)
    modules = 0
    if adapter:
        engine.drain()
        if not engine.lora_manager.can_activate(adapter):
            raise refuse("adapter", "all of --max-loras are in use by running requests")
        segment = segment._replace(lora_slot=engine.lora_manager.activate(adapter))
        modules = engine.lora_manager.affected_modules([adapter])
    page_table = np.arange(pages, dtype=np.int32)[None]
    plan = StepPlan(np.array([segment], dtype=np.int32), np.array(ids), page_table, active_lora_modules=modules)
    return runner.logits(plan, pages)


OutputQueue = deque[EngineOutput]


class OutputCollector:
    """Gives each call the outputs of its own requests, whichever call runs the step.

    On devices with overlap, outputs are dispatched while the next step runs.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._queues: dict[str, OutputQueue] = {}  # by request id
        # The callback has no reference to the engine. In a cycle, the engine would keep its memory until the garbage
        # collector runs.
        weak, queues = weakref.proxy(engine), self._queues
        self._overlaps = engine.set_overlap_callback(lambda: _dispatch(weak, queues))

    def submit(self, specs: Iterable[RequestSpec]) -> OutputQueue:
        """Adds requests to the engine. Returns the queue of their outputs."""
        queue: OutputQueue = deque()
        for spec in specs:
            self.engine.add(spec)
            self._queues[spec.id] = queue
        return queue

    def get(self, queue: OutputQueue) -> EngineOutput:
        """Returns the next output of a queue; runs steps until there is one.

        Raises:
            RuntimeError: the engine was closed.
        """
        while not queue:
            has_work = self.engine.has_work()
            if has_work:
                self.engine.execute_step()
            if not self._overlaps or not self.engine.has_work():
                _dispatch(self.engine, self._queues)
            if not has_work and not queue:
                raise RuntimeError("the LLM was closed while a request was running")
        return queue.popleft()

    def cancel(self, request_id: str) -> None:
        """Discards the outputs of a request and aborts it if it is not finished."""
        self._queues.pop(request_id, None)
        self.engine.abort(request_id)


def _dispatch(engine: Engine, queues: dict[str, OutputQueue]) -> None:
    for output in engine.take_outputs():
        if output.id in queues:
            queues[output.id].append(output)


Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]  # text, token ids, or chat messages


class LLM:
    """A model in this process. A process may have several models. A model may be used by one thread only.

    Several streams may be open at the same time, also while `generate` is called. They are batched together.

    Args:
        model: Directory, ``hf://org/name[@revision]``, or None for the demo checkpoint.
        flags: Any flag of the engine, with underscores (``device="cpu"``, ``block_size=8``, ``dtype="float64"`` ...).
            ``plugin="FILE.py"`` registers an algorithm, strategy or family of your own.
            ``skip_tokenizer=True``: token ids instead of text. ``tensor_parallel_size=N`` starts N - 1 processes, which
            end with this object.

    Raises:
        ConfigError: A flag or the checkpoint is invalid or not supported.
        ReplicaLost: From any call, with ``tensor_parallel_size`` above 1, after one of its processes is gone.
    """

    tokenizer: Tokenizer | None

    def __init__(self, model: str | None = None, **flags: Any) -> None:
        config = EngineConfig.from_flags(model=model, **flags)
        load_plugins(config.plugin)
        self._init(*_engine(config))
        path = resolve_text_files(config.model)
        if not config.skip_tokenizer:
            from runtime.tokenizer import Tokenizer

            self.tokenizer = Tokenizer(path)
        if self.engine.grammars is not None:  # grammars were not checked by a server
            self.engine.grammars.checker = GrammarSandbox(path, self.engine.info, os.environ)

    @classmethod
    def from_engine(cls, engine: Engine, ranks: MultiprocExecutor | None = None) -> LLM:
        """Wraps an existing engine, without a tokenizer."""
        made = cls.__new__(cls)
        made._init(engine, ranks)
        return made

    def _init(self, engine: Engine, ranks: MultiprocExecutor | None = None) -> None:
        self.engine = engine
        self._ranks = ranks  # other ranks, which end with this object
        self.tokenizer = None
        self._ids = itertools.count()
        self._collector = OutputCollector(engine)
        while engine.capture_next():
            pass

    @property
    def info(self) -> EngineInfo:
        """Properties and limits of the loaded engine."""
        return self.engine.info

    def generate(
        self,
        prompts: Sequence[Prompt] | str,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | Sequence[str | None] | None = None,
    ) -> list[GenerationOutput]:
        """Generates completions for all prompts, batched together. Returns them in order.

        Args:
            prompts: Texts (continued as they are), lists of ids, or lists of chat messages, in any mix.
            params: Parameters for all prompts, or one entry per prompt.
            adapter: Name of a loaded adapter, for all prompts or per prompt; None: the base model.

        Raises:
            RequestError: A prompt is invalid (nothing runs then), or the engine failed on one.
        """
        prompts = [prompts] if isinstance(prompts, str | Mapping) else prompts  # a mapping is refused as a prompt
        each, names = _one_each("params", params, len(prompts)), _one_each("adapter", adapter, len(prompts))
        groups = [
            self._choices(prompt, mine or SamplingParams(), adapter=name)
            for prompt, mine, name in zip(prompts, each, names, strict=True)
        ]
        self._finish([choice for group in groups for choice in group])
        return [GenerationOutput.from_completions(group) for group in groups]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | Sequence[str | None] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[GenerationOutput]:
        """Generates answers to one or several conversations through the checkpoint's chat template.

        Args:
            messages: Messages of one conversation, or a list of conversations. A message has `role` and `content`.
            params: As for `generate`.
            adapter: As for `generate`.
            chat_template_kwargs: Further variables of the template.

        Raises:
            RequestError: As `generate`, and for messages that the template cannot render.
        """
        single = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = [messages] if single else messages
        encode: Any = self._tokenizer("messages").encode_chat
        kwargs = {**self.engine.info.template_variables, **(chat_template_kwargs or {})}
        prompts = [encode([m if isinstance(m, str) else dict(m) for m in chat], **kwargs) for chat in conversations]
        return self.generate(prompts, params, adapter=adapter)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        stream_mode: Literal["denoise", "block_append"] = "denoise",
        adapter: str | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yields the events of docs/guide/streaming.md. The last one, ``event: "final"``, has the full answer."""
        params = params or SamplingParams()
        if params.n != 1:
            raise refuse("n", "a stream has one answer; leave it out")
        if stream_mode not in ("denoise", "block_append"):
            raise refuse("stream_mode", "must be denoise or block_append")
        report: StreamMode = "denoise" if stream_mode == "denoise" else "stable"
        (choice,) = self._choices(prompt, params, report, adapter)
        make = denoise_event if stream_mode == "denoise" else append_event
        inbox = self._collector.submit([choice.spec])
        try:
            while choice.finish_reason is None:
                output = self._collector.get(inbox)
                event = make(choice, output, self._absorb(choice, output))
                if event is not None:
                    yield event
        finally:
            self._collector.cancel(choice.spec.id)
        answer = GenerationOutput.from_completion(choice)
        final = {name: getattr(answer, name) for name in ("text", "token_ids", "nfe", "finish_reason", "usage")}
        if answer.warning:
            final["warning"] = answer.warning
        yield {"event": "final", "id": choice.spec.id, **final, **choice.step_map_fields()}

    def score(
        self, texts: Sequence[tuple[Prompt, str | Sequence[int]]], *, top: int = 0, stride: int = 1,
        adapter: str | None = None,
    ) -> list[list[TokenLogprob]]:  # fmt: skip
        """Returns the log-probability of each token of a text after a prompt.

        See docs/guide/decoding.md#log-probabilities-of-a-prompt.

        Args:
            texts: Pairs of a prompt and the text that follows it.
            top: Number of alternatives per token.
            stride: Tokens per forward.
            adapter: Name of an adapter.

        Raises:
            RequestError: A text is empty, or prompts cannot be scored.
        """
        integer("top", top, 0, MAX_LOGPROBS)
        integer("stride", stride, 1, MAX_TOKENS_PER_STEP)
        scored = []
        for n, (prompt, text) in enumerate(texts):
            ids = check_prompt(self._encode(prompt), self.engine.info)
            first = len(ids)
            ids += self._tokenizer("text").encode(text) if isinstance(text, str) else list(text)
            check_ids(ids, self.engine.info, "text")
            if first == len(ids):
                raise refuse("text", f"is empty in pair {n}; give at least one token")
            context = RequestContext(id=f"llm-{next(self._ids)}", adapter=self.engine.lora_manager.resolve(adapter))
            spec = score_spec(
                ids, self.engine.info, context, param="text", prompt_len=first, logprobs=top, tokens_per_step=stride
            )
            scored.append(CompletionState(n, spec, TextBuilder()))
        self._finish(scored)
        return [choice.token_logprobs or [] for choice in scored]

    def decide(
        self, state: Any, questions: Sequence[Question], *, joint: bool = False, adapter: str | None = None
    ) -> list[Answer]:
        """Answers typed questions about a state with probabilities, without text (docs/guide/decisions.md).

        Args:
            state: Text, or an object or a list as JSON.
            questions: At most 400, made by `Question.predicate`, `Question.choice` and `Question.score`.
            joint: Answer as many questions per forward as fit, instead of one.
            adapter: Name of an adapter.

        Raises:
            RequestError: There is no chat template, a prompt is too long, or a question has too many options.
        """
        if not 0 < len(questions) <= MAX_QUESTIONS:
            raise refuse("questions", f"has {len(questions)} questions; give 1 to {MAX_QUESTIONS}")
        asked = [replace(question, path=f"questions[{i}]") for i, question in enumerate(questions)]
        messages = [{"role": "user", "content": as_text(state)}]
        from runtime.decisions.prompts import DecisionPrompts  # needs the tokenizer's libraries

        prompts = DecisionPrompts(self._tokenizer("a state"), self.engine.info, messages, {})
        reads, choices = prompts.reads(asked, joint=joint), []
        for n, read in enumerate(reads):
            context = RequestContext(id=f"llm-{next(self._ids)}", adapter=self.engine.lora_manager.resolve(adapter))
            choices.append(CompletionState(n, read.spec(self.engine.info, context), TextBuilder()))
        self._finish(choices)
        return [
            answer for read, choice in zip(reads, choices, strict=True) for answer in read.answers(choice.read or [])
        ]

    @torch.inference_mode()
    def logits(self, ids: Sequence[int], block_size: int | None = None, *, adapter: str | None = None) -> torch.Tensor:
        """Returns logits of one uncached forward under the family's attention, before any shift or mask of tokens.

        Layers and kernels are those of serving.

        Args:
            ids: Token ids.
            block_size: Use block-causal attention with blocks of this size; None: the strategy's attention in prompts.
            adapter: Name of an adapter.

        Returns:
            float32 [len(ids), vocab]; float64 if the model is.
        """
        name = self.engine.lora_manager.resolve(adapter, self.info.default_adapter)
        return forward_logits(self.engine, list(ids), block_size, name)

    def load_adapter(self, name: str, path: str) -> None:
        """Loads an adapter that requests may name. Raises ConfigError, without changes, if it is not supported."""
        self.engine.lora_manager.load(name, self.engine.lora_manager.read(path))

    def unload_adapter(self, name: str) -> None:
        """Unloads an adapter. Raises RequestError while requests with it are running."""
        self.engine.drain()
        if not self.engine.unload_adapter(name):
            self.engine.lora_manager.unloading.discard(name)
            raise refuse("adapter", f"requests with {name!r} are running; retry when they have finished", status=409)

    def close(self) -> None:
        """Frees the model and the cache; the object cannot be used afterwards. Closing again does nothing."""
        self.engine.close()
        if self._ranks is not None:
            self._ranks.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, Sequence) and not isinstance(prompt, str):
            if prompt and isinstance(prompt[0], Mapping):
                variables = self.engine.info.template_variables
                return self._tokenizer("messages").encode_chat([dict(message) for message in prompt], **variables)  # type: ignore[arg-type]
            return list(prompt)  # type: ignore[arg-type]
        if not isinstance(prompt, str):
            what = "must be text, a list of ids or a list of messages; `generate` takes a list of prompts"
            raise refuse("prompt", what)
        return self.engine.info.with_bos(self._tokenizer("text").encode(prompt))

    def _tokenizer(self, what: str) -> Tokenizer:
        if self.tokenizer is None:
            raise refuse("prompt", f"{what} needs a tokenizer, and skip_tokenizer is on; give ids")
        return self.tokenizer

    def _choices(
        self, prompt: Prompt, params: SamplingParams, report: StreamMode | None = None, adapter: str | None = None
    ) -> list[CompletionState]:
        stop = stop_strings(params.stop)
        if stop:
            self._tokenizer("a stop string")
        ids, name = self._encode(prompt), self.engine.lora_manager.resolve(adapter)
        mode: StreamMode = report or ("stable" if stop else "final")
        context = RequestContext(id=f"llm-{next(self._ids)}", stream_mode=mode, adapter=name)
        spec = resolve(params, ids, self.engine.info, context)
        if spec.grammar:
            grammars = self.engine.grammars
            assert grammars is not None  # otherwise it was refused
            matcher = grammars.compile(spec.grammar, path_of(params.structured_outputs, FIELD))
            spec = msgspec.structs.replace(spec, witness=grammars.witness(spec.grammar, matcher))
        return [
            CompletionState(i, one, self._detokenizer(stop)) for i, one in enumerate(expand_choices(spec, params.n))
        ]

    def _detokenizer(self, stop: tuple[str, ...]) -> TextBuilder:
        if self.tokenizer is None:
            return TextBuilder()
        from runtime.tokenizer import IncrementalDetokenizer

        return IncrementalDetokenizer(self.tokenizer, stop, marks=part_marks())

    def _finish(self, all_choices: list[CompletionState]) -> None:
        waiting = {choice.spec.id: choice for choice in all_choices}
        inbox = self._collector.submit(choice.spec for choice in all_choices)
        try:
            while waiting:
                output = self._collector.get(inbox)
                choice = waiting.get(output.id)
                if choice is not None:
                    self._absorb(choice, output)
                    if choice.finish_reason is not None:
                        self._collector.cancel(waiting.pop(output.id).spec.id)
        finally:
            for request_id in waiting:
                self._collector.cancel(request_id)

    def _absorb(self, choice: CompletionState, output: EngineOutput) -> str:
        if output.refused:
            raise GrammarError(FIELD, output.error or "")
        if output.finish_reason == "error":
            raise RequestError(f"the engine failed: {output.error}", status=500, code="engine_error")
        return choice.update(output)


def _one_each(name: str, value: Any, count: int) -> list[Any]:
    """Returns `value` for each of `count` prompts, unless it is a list with one entry per prompt already."""
    if value is None or isinstance(value, str | SamplingParams):
        return [value] * count
    if len(value) != count:
        raise refuse(name, f"{len(value)} for {count} prompts; give one, or one each")
    return list(value)


def _engine(config: EngineConfig) -> tuple[Engine, MultiprocExecutor | None]:
    """Loads an engine. Returns it and the executor of its other ranks, if any."""
    if config.tensor_parallel_size == 1:
        return load_engine(config), None
    from runtime.executor.executor import local_engine

    return local_engine(config)
