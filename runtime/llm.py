"""``LLM``: the engine in the caller's process, for offline use and tests (README.md#in-python-without-a-server)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from runtime.config import EngineConfig
from runtime.engine.engine import Engine
from runtime.engine.output_collector import OutputCollector
from runtime.engine.setup import load_engine
from runtime.errors import RequestError
from runtime.parsers import part_marks
from runtime.request.engine_messages import EngineInfo, EngineOutput, Report
from runtime.request.output import AnswerText, Choice, IdsOnly, append_event, denoise_event
from runtime.request.request_output import GenerationOutput
from runtime.request.resolve import choices, resolve
from runtime.request.sampling_params import SamplingParams, stop_strings
from runtime.request.structured import FIELD, path_of
from runtime.request.validation import refuse
from runtime.scoring import Scoring
from runtime.structured_output.grammar_cache import GrammarError
from runtime.structured_output.sandbox_on_demand import LateTrials
from runtime.weights import resolve_checkpoint

if TYPE_CHECKING:
    from runtime.distributed.executor import Ranks
    from runtime.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]  # text, token ids, or chat messages


class LLM(Scoring):
    """A model in this process. Several may live side by side; none may be shared between threads.

    Streams may be open at the same time, and `generate` may be called meanwhile: they share the engine's batches.

    Args:
        model: directory, ``hf://org/name[@revision]``, or None for the demo checkpoint.
        flags: any flag of the engine, with underscores (``device="cpu"``, ``block_size=8``, ``dtype="float64"`` ...).
            ``skip_tokenizer=True``: ids in, ids out. With ``tensor_parallel_size=N`` it starts N - 1 processes, which
            end with it.

    Raises:
        ConfigError: for flags or a checkpoint that cannot be honoured.
        ReplicaLost: from any call, with ``tensor_parallel_size`` above 1, when one of its processes is gone, for good.
    """

    tokenizer: Tokenizer | None

    def __init__(self, model: str | None = None, **flags: Any) -> None:
        config = EngineConfig.from_flags(model=model, **flags)
        self._begin(*_engine(config))
        path = resolve_checkpoint(config.model).path
        if not config.skip_tokenizer:
            from runtime.tokenizer import Tokenizer

            self.tokenizer = Tokenizer(path)
        if self.engine.grammars is not None:  # no server has tried them before
            self.engine.grammars.trial = LateTrials(path, self.engine.info)

    @classmethod
    def around(cls, engine: Engine, ranks: Ranks | None = None) -> LLM:
        """Of an engine that was made otherwise: ids in, ids out."""
        made = cls.__new__(cls)
        made._begin(engine, ranks)
        return made

    def _begin(self, engine: Engine, ranks: Ranks | None = None) -> None:
        self.engine = engine
        self._ranks = ranks  # processes that end with it
        self.tokenizer = None
        self._ids = itertools.count()
        self._inboxes = OutputCollector(engine)

    @property
    def info(self) -> EngineInfo:
        """What was loaded and its limits."""
        return self.engine.info

    def generate(
        self,
        prompts: Sequence[Prompt] | str,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | Sequence[str | None] | None = None,
    ) -> list[GenerationOutput]:
        """Answer all prompts, in shared batches; outputs in their order.

        Args:
            prompts: texts (continued as they are), lists of ids, or lists of chat messages, in any mix.
            params: one for all, or one each.
            adapter: likewise, the name of one that is loaded; None: the base model.

        Raises:
            RequestError: if any of them is wrong (nothing runs then), or the engine failed on one.
        """
        prompts = [prompts] if isinstance(prompts, str) else prompts
        each = self._params(params, len(prompts))
        names = [adapter] * len(prompts) if adapter is None or isinstance(adapter, str) else list(adapter)
        if len(names) != len(prompts):
            raise refuse("adapter", f"{len(names)} for {len(prompts)} prompts; give one, or one each")
        groups = [
            self._choices(prompt, mine, adapter=name) for prompt, mine, name in zip(prompts, each, names, strict=True)
        ]
        self._finish([choice for group in groups for choice in group])
        return [GenerationOutput.of_all(group) for group in groups]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        adapter: str | Sequence[str | None] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[GenerationOutput]:
        """Answer a conversation, or several in shared batches, through the checkpoint's chat template.

        Args:
            messages: of one conversation, or a list of conversations; each message with `role` and `content`.
            params, adapter: as for `generate`.
            chat_template_kwargs: further variables of the template.

        Raises:
            RequestError: as `generate` does, and for messages that the template cannot render.
        """
        single = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = [messages] if single else messages
        encode = self._tokenizer("messages").encode_chat
        kwargs = dict(chat_template_kwargs or {})
        prompts = [encode([dict(message) for message in talk], **kwargs) for talk in conversations]
        return self.generate(prompts, params, adapter=adapter)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        stream_mode: Literal["denoise", "block_append"] = "denoise",
        adapter: str | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yields the events of docs/server.md#streaming. The last one, ``event: "final"``, has the full answer."""
        params = params or SamplingParams()
        if params.n != 1:
            raise refuse("n", "a stream has one answer; leave it out")
        if stream_mode not in ("denoise", "block_append"):
            raise refuse("stream_mode", "must be denoise or block_append")
        report: Report = "denoise" if stream_mode == "denoise" else "stable"
        (choice,) = self._choices(prompt, params, report, adapter)
        make = denoise_event if stream_mode == "denoise" else append_event
        inbox = self._inboxes.submit([choice.spec])
        try:
            while choice.finish_reason is None:
                output = self._inboxes.get(inbox)
                event = make(choice, output, self._absorb(choice, output))
                if event is not None:
                    yield event
        finally:
            self._inboxes.cancel(choice.spec.id)
        answer = GenerationOutput.of(choice)
        final = {name: getattr(answer, name) for name in ("text", "token_ids", "nfe", "finish_reason", "usage")}
        yield {"event": "final", "id": choice.spec.id, **final}

    @torch.inference_mode()
    def logits(self, ids: Sequence[int], block_size: int | None = None, *, adapter: str | None = None) -> torch.Tensor:
        """float32 [len(ids), vocab] (float64 where the model is): one uncached forward under the family's attention.

        Same layers and kernels as serving; before any shift or ban.
        """
        from runtime.engine.forward_logits import forward_logits

        name = self.engine.lora_manager.resolve(adapter, self.info.default_adapter)
        return forward_logits(self.engine, list(ids), block_size, name)

    def load_adapter(self, name: str, path: str) -> None:
        """From now on `adapter` may name it. ConfigError, and nothing changes, where it cannot be served."""
        self.engine.lora_manager.load(name, self.engine.lora_manager.read(path))

    def unload_adapter(self, name: str) -> None:
        """Forget it. RequestError while answers with it are under way."""
        self.engine.drain()
        if not self.engine.unload_adapter(name):
            self.engine.lora_manager.unloading.discard(name)
            raise RequestError(f"adapter: answers with {name!r} are under way", param="adapter", status=409)

    def close(self) -> None:
        """Free the model and the cache; the object cannot be used afterwards. Closing again does nothing."""
        self.engine.close()
        if self._ranks is not None:
            self._ranks.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- parts

    def _params(self, params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
        if params is None or isinstance(params, SamplingParams):
            return [params or SamplingParams()] * count
        if len(params) != count:
            raise refuse("params", f"{len(params)} for {count} prompts; give one, or one each")
        return list(params)

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, Sequence) and not isinstance(prompt, str):
            if prompt and isinstance(prompt[0], Mapping):
                return self._tokenizer("messages").encode_chat([dict(message) for message in prompt])  # type: ignore[arg-type]
            return list(prompt)  # type: ignore[arg-type]
        if not isinstance(prompt, str):
            what = "must be text, a list of ids or a list of messages; `generate` takes a list of prompts"
            raise refuse("prompt", what)
        return self.engine.info.begun(self._tokenizer("text").encode(prompt))

    def _tokenizer(self, what: str) -> Tokenizer:
        if self.tokenizer is None:
            raise refuse("prompt", f"{what} needs a tokenizer, and skip_tokenizer is on; give ids")
        return self.tokenizer

    def _choices(
        self, prompt: Prompt, params: SamplingParams, report: Report | None = None, adapter: str | None = None
    ) -> list[Choice]:
        stop = stop_strings(params.stop)
        if stop:
            self._tokenizer("a stop string")
        spec = resolve(
            params,
            self._encode(prompt),
            self.engine.info,
            id=f"llm-{next(self._ids)}",
            report=report or ("stable" if stop else "final"),
            adapter=self.engine.lora_manager.resolve(adapter),
        )
        if spec.grammar:
            assert self.engine.grammars is not None  # else it was refused
            self.engine.grammars.compiled(spec.grammar, path_of(params.structured_outputs, FIELD))
        return [Choice(i, one, self._answer(stop)) for i, one in enumerate(choices(spec, params.n))]

    def _answer(self, stop: tuple[str, ...]) -> AnswerText:
        if self.tokenizer is None:
            return IdsOnly()
        from runtime.tokenizer import Answer

        return Answer(self.tokenizer, stop, marks=part_marks())

    def _finish(self, all_choices: list[Choice]) -> None:
        waiting = {choice.spec.id: choice for choice in all_choices}
        inbox = self._inboxes.submit(choice.spec for choice in all_choices)
        try:
            while waiting:
                output = self._inboxes.get(inbox)
                choice = waiting.get(output.id)
                if choice is not None:
                    self._absorb(choice, output)
                    if choice.finish_reason is not None:
                        self._inboxes.cancel(waiting.pop(output.id).spec.id)
        finally:
            for request_id in waiting:
                self._inboxes.cancel(request_id)

    def _absorb(self, choice: Choice, output: EngineOutput) -> str:
        if output.refused:
            raise GrammarError(FIELD, output.error or "")
        if output.finish_reason == "error":
            raise RequestError(f"the engine failed: {output.error}", status=500, code="engine_error")
        return choice.absorb(output)


def _engine(config: EngineConfig) -> tuple[Engine, Ranks | None]:
    """An engine, and the other processes that share its model."""
    if config.tensor_parallel_size == 1:
        return load_engine(config), None
    from runtime.distributed.local_executor import local_engine

    return local_engine(config)
