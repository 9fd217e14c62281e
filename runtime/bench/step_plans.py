"""Builds step plans for timing, from requests as the scheduler would schedule them.

Visible keys, editable rows and the unmasking algorithm follow from the strategy.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from runtime.algorithms.base import algorithm_keys, get_algorithm
from runtime.request.field_spec import Value, values_of, with_defaults
from runtime.scheduling.kv_cache_manager import PageTable
from runtime.scheduling.request import Block, ForwardSpan, Request, ScheduledRequest
from runtime.scheduling.step_plan import UNMASKED, StepPlan
from runtime.scheduling.strategy import Strategy
from runtime.worker.input_batch import InputBuilder

if TYPE_CHECKING:  # machines that measure may lack msgspec
    from runtime.request.engine_messages import RequestSpec

ACCEPT = 0.95  # a threshold that random weights do not reach


def pages_needed(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


@dataclass(frozen=True)
class _Decoding:
    """The fields of DecodingParams that a request reads."""

    algorithm: str
    values: dict[str, Value]
    total_steps: int | None = None
    force_single_batch: bool = False


@dataclass(frozen=True)
class _RequestSpec:
    """The fields of RequestSpec that a request reads."""

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
    processed_logprobs: bool = False
    stream_candidates: int = 0
    step_map: None = None
    forced_token_ids: tuple[int, ...] = ()
    read_ids: tuple[int, ...] = ()
    stream_mode: str = "final"
    max_nfe: int | None = None
    max_repetition_run: int | None = None
    pinned_tokens: dict[int, int] = field(default_factory=dict)
    cache_salt: str = ""
    adapter: str = ""
    grammar: str = ""


@dataclass(frozen=True)
class StepPlans:
    """Builds plans for one strategy and one KV pool.

    Attributes:
        mask_id: None if open positions hold noise.
        pages: number of pages of the pool. Each request has random ones.
    """

    strategy: Strategy
    block_size: int
    mask_id: int | None
    vocab_size: int
    page_size: int
    pages: int

    def decode(self, batch: int, context: int, *, filled: float = 0.0) -> StepPlan:
        """Returns the plan of the second step of the first block of `batch` requests.

        The algorithm is `threshold`; for uniform noise, the first one that fits. The step has the rows of the block
        alone, even if a strategy forwards more or fewer rows in its first step.

        Args:
            batch: number of requests.
            context: cached tokens before each block.
            filled: fraction of a block's positions, chosen at random, that have random ids. The others are masked. With
                uniform noise, all positions have random ids.
        """
        random = np.random.default_rng(batch)
        scheduled = []
        last = context + self.block_size
        for request in self._requests(batch, context, self.block_size):
            block = Block(request, context, last)
            block.numbers.num_steps = request.nfe = 1
            if request.algorithm.history_fields:
                block.memory.history = np.ones((self.block_size, 1, len(request.algorithm.history_fields)))
            ids = random.integers(0, self.vocab_size if self.mask_id is None else self.mask_id, self.block_size)
            some = np.arange(self.block_size)
            if self.mask_id is not None:
                some = random.permutation(self.block_size)[: round(filled * self.block_size)]
                request.state[context + some] = UNMASKED
            request.tokens[context + some] = ids[some]
            scheduled.append(ScheduledRequest(request, context, last, ForwardSpan(context, last, [block])))
        return self._plan(scheduled, last)

    def prefill(self, batch: int, length: int, *, budget: int) -> list[StepPlan]:
        """Returns the plans that prefill `batch` prompts of `length` random tokens.

        Each forward has as many whole prompts as `budget` tokens allow, at least one. If no prompt token is final, the
        forward computes a canvas of `length` tokens, of which all but the last are the prompt.
        """
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
            spec = _RequestSpec([0] * prompt, answer, _Decoding(key, values), temperature=float(noisy), seed=n)
            request = Request(
                cast("RequestSpec", spec),
                size=self.strategy.total_len(prompt, answer),
                num_final_tokens=self.strategy.initial_final_len(prompt),
                mask_id=self.mask_id or 0,
                arrival_index=n,
            )
            made.append(request)
        return made

    def _plan(self, batch: list[ScheduledRequest], tokens: int) -> StepPlan:
        """Returns the plan of a step. The first `tokens` positions of each request are in random pages."""
        page_groups = pages_needed(tokens, self.page_size)
        table = PageTable(rows=len(batch), pages_per_group=1)
        page_ids = np.random.default_rng(7).permutation(self.pages)[: len(batch) * page_groups]
        for scheduled, pages in zip(batch, page_ids.reshape(-1, page_groups).tolist(), strict=True):
            scheduled.request.req_slot = table.allocate_row()
            scheduled.request.pending_writes = [(scheduled.start, scheduled.end)]
            table.write(scheduled.request.req_slot, 0, pages)
        builder = InputBuilder(table, self.strategy)
        plan = builder.plan(batch)
        return replace(plan, blocks=builder.blocks())
