"""Scoring by ``LLM``: logits of a sequence, and log-probabilities of a text after a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from runtime.engine.engine import Engine
from runtime.engine.request import Request
from runtime.engine.step_plan import block_causal_plan
from runtime.errors import RequestError
from runtime.request.engine_messages import RequestSpec
from runtime.request.output import CompletionState, IdsOnly, TokenLogprob
from runtime.request.resolve import check_ids, check_prompt
from runtime.request.sampling_params import MAX_LOGPROBS
from runtime.request.scoring import MAX_TOKENS_PER_STEP, score_spec
from runtime.request.validation import integer
from runtime.worker.model_runner import SupportsLogits

if TYPE_CHECKING:
    from runtime.tokenizer import Tokenizer


class SupportsScoring(Protocol):
    """The parts of an ``LLM`` that scoring uses."""

    engine: Engine
    _ids: Iterator[int]

    def _encode(self, prompt: Any) -> list[int]: ...
    def _tokenizer(self, what: str) -> Tokenizer: ...
    def _finish(self, all_choices: list[CompletionState]) -> None: ...


class ScoringMixin:
    def score(
        self: SupportsScoring, texts: Sequence[tuple[Any, str | Sequence[int]]], *, top: int = 0, stride: int = 1,
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
                raise RequestError(f"text: the one of pair {n} is empty; give at least one token", param="text")
            spec = score_spec(
                ids, self.engine.info, id=f"llm-{next(self._ids)}", param="text", prompt_len=first, logprobs=top,
                tokens_per_step=stride, adapter=self.engine.lora_manager.resolve(adapter),
            )  # fmt: skip
            scored.append(CompletionState(n, spec, IdsOnly()))
        self._finish(scored)
        return [choice.token_logprobs or [] for choice in scored]


def forward_logits(engine: Engine, ids: list[int], block_size: int | None = None, adapter: str = "") -> torch.Tensor:
    """Returns logits [len(ids), vocab] on the CPU.

    Args:
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
        raise RequestError("prompt: is empty; give at least one token", param="prompt")
    last = engine.info.vocab_size - 1
    for i, token in enumerate(ids):
        integer(f"prompt[{i}]", token, 0, last)
    block = integer("block_size", block_size, 1, 2**31, default=None)
    page_size = engine.info.page_size
    pages = -(-len(ids) // page_size)
    plan = block_causal_plan(
        np.array(ids), np.zeros(1, np.int64), np.array([len(ids)]), np.arange(pages, dtype=np.int32)[None],
        page_size=page_size, block_size=block or 1,
    )  # fmt: skip
    layout = plan.layout
    if block is None:
        spec = RequestSpec(id="", prompt=ids, max_tokens=0, decoding=engine.info.defaults())
        mask = engine.info.mask_token_id or 0
        request = Request(
            spec,
            size=len(ids),
            num_final_tokens=len(ids),
            mask_id=mask,
            arrival_index=0,
            get_algorithm=engine.get_algorithm,
        )
        visible_end = engine.strategy.visible_end([request], np.zeros_like(layout.positions), layout.positions)
        not_editable = np.zeros_like(layout.is_editable)
        layout = replace(
            layout, visible_end=np.minimum(visible_end, len(ids)).astype(np.int32), is_editable=not_editable
        )
    if adapter:
        engine.drain()
        if not engine.lora_manager.can_activate(adapter):
            raise RequestError("adapter: all of --max-loras are in use by running requests", param="adapter")
        slots = np.full(len(ids), engine.lora_manager.activate(adapter), dtype=np.int32)
        modules = engine.lora_manager.affected_modules([adapter])
        layout = replace(layout, lora_slots=slots, active_lora_modules=modules)
    return runner.logits(replace(plan, layout=layout), pages)
