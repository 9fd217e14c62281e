"""Step plans of requests that exist only to be timed: turns as the scheduler would hand them out, which the planner
writes. Which rows see what, which of them are open, and which rule decides, follows from the strategy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from runtime.algorithms.base import algorithm_keys, get_algorithm
from runtime.engine.kv_cache_manager import PageTable
from runtime.engine.request import Block, ForwardSpan, Request, ScheduledRequest
from runtime.engine.step_plan import UNMASKED, StepPlan
from runtime.request.field_spec import Value, values_of, with_defaults
from runtime.strategies.base import Strategy
from runtime.worker.input_batch import InputBuilder

if TYPE_CHECKING:  # the machines that measure lack the messages' package
    from runtime.request.engine_messages import RequestSpec

ACCEPT = 0.95  # a threshold that random weights do not reach


def pages_needed(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


@dataclass(frozen=True)
class _Decoding:
    """What a request reads of its DecodingParams."""

    algorithm: str
    values: dict[str, Value]
    total_steps: int | None = None
    force_single_batch: bool = False


@dataclass(frozen=True)
class _Asked:
    """What a request reads of its RequestSpec."""

    prompt: list[int]
    max_tokens: int
    decoding: _Decoding
    temperature: float
    seed: int
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    ignore_eos: bool = False
    stop_ids: tuple[int, ...] = ()
    logits_processors: None = None
    logprobs: None = None
    forced_token_ids: tuple[int, ...] = ()
    stream_mode: str = "final"
    max_nfe: int | None = None
    max_repetition_run: int | None = None
    pinned_tokens: dict[int, int] = field(default_factory=dict)
    cache_salt: str = ""
    adapter: str = ""
    grammar: str = ""


@dataclass(frozen=True)
class StepPlans:
    """Plans for one strategy and one pool.

    Args:
        mask_id: None where what is open is noise. pages: of the pool; each request's are drawn from them at random.
    """

    strategy: Strategy
    block_size: int
    mask_id: int | None
    vocab_size: int
    page_size: int
    pages: int

    def decode(self, batch: int, context: int, *, filled: float = 0.0) -> StepPlan:
        """The second step of `batch` requests' first blocks, with `context` cached tokens before each: under the rule
        `threshold`, `filled` of a block's positions, drawn at random, hold random ids and the others are masked; noise
        is random throughout. A strategy that feeds more, or less, of its first step is timed on the block alone."""
        random = np.random.default_rng(batch)
        scheduled = []
        last = context + self.block_size
        for request in self._requests(batch, context, self.block_size):
            block = Block(request, context, last)
            block.num_advance_steps = request.nfe = 1
            if request.algorithm.history_fields:
                block.history = np.ones((self.block_size, 1, len(request.algorithm.history_fields)))
            ids = random.integers(0, self.vocab_size if self.mask_id is None else self.mask_id, self.block_size)
            some = np.arange(self.block_size)
            if self.mask_id is not None:
                some = random.permutation(self.block_size)[: round(filled * self.block_size)]
                request.state[context + some] = UNMASKED
            request.tokens[context + some] = ids[some]
            scheduled.append(ScheduledRequest(request, context, last, ForwardSpan(context, last, [block])))
        return self._plan(scheduled, last)

    def prefill(self, batch: int, length: int, *, budget: int) -> list[StepPlan]:
        """`batch` prompts of `length` random tokens, whole prompts a forward up to `budget` tokens, at least one. Where
        nothing of a prompt is final it is a canvas of `length`, all but the last position of it the prompt."""
        answer = 0 if self.strategy.initial_final_len(length) else 1
        each = max(1, budget // length)
        random = np.random.default_rng(batch * length)
        plans = []
        for first in range(0, batch, each):
            requests = self._requests(min(each, batch - first), length - answer, answer or self.block_size)
            for request in requests:
                request.tokens[:length] = random.integers(0, self.vocab_size, length)
            plans.append(self._plan([ScheduledRequest(request, 0, length, None) for request in requests], length))
        return plans

    def _requests(self, count: int, prompt: int, answer: int) -> list[Request]:
        noisy = self.strategy.uniform_noise
        fitting = [key for key in algorithm_keys() if get_algorithm(key).uniform_noise == noisy]
        key = "threshold" if "threshold" in fitting else fitting[0]
        declared = (*self.strategy.fields, *get_algorithm(key).fields)
        values = values_of(with_defaults(declared, self.block_size, {"accept_threshold": ACCEPT}))
        made = []
        for n in range(count):
            asked = _Asked([0] * prompt, answer, _Decoding(key, values), temperature=float(noisy), seed=n)
            request = Request(
                cast("RequestSpec", asked),
                size=self.strategy.total_len(prompt, answer),
                num_final_tokens=self.strategy.initial_final_len(prompt),
                mask_id=self.mask_id or 0,
                arrival_index=n,
            )
            made.append(request)
        return made

    def _plan(self, batch: list[ScheduledRequest], tokens: int) -> StepPlan:
        """Each request's first `tokens` positions lie in pages drawn at random."""
        units = pages_needed(tokens, self.page_size)
        table = PageTable(rows=len(batch), page_groups=units, pages_per_group=1, page_size=self.page_size)
        drawn = np.random.default_rng(7).permutation(self.pages)[: len(batch) * units].reshape(len(batch), units)
        for scheduled, pages in zip(batch, drawn.tolist(), strict=True):
            scheduled.request.req_slot = table.allocate_row()
            table.write(scheduled.request.req_slot, 0, pages)
        builder = InputBuilder(table, self.strategy)
        plan = builder.plan(batch)
        return replace(plan, blocks=builder.blocks(batch))
