"""Interface of decoding strategies: open blocks, the rows of a step, and state updates from its results."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from runtime.errors import ConfigError
from runtime.request.block_layout import BlockLayout
from runtime.request.field_spec import Field, Value
from runtime.scheduling.request import Block, ForwardSpan, Request, Successors
from runtime.scheduling.step_plan import BlockResults

NO_VALUES: Mapping[str, Value] = MappingProxyType({})
LENGTH_STEP = 256  # tokens; a max_model_len that memory limits is a multiple of it


@dataclass(frozen=True)
class DecodingContext:
    """Properties of the engine and the model that a strategy depends on."""

    block_size: int
    buffer_size: int | None  # None: the default of the strategy
    prefix_caching: bool
    max_model_len: int
    shift: bool = False  # logits shift: the logits of a position are those of the row before it
    vocab_size: int = 0  # vocabulary size of the model, for strategies that sample noise


class VisibleKeys(NamedTuple):
    """The keys that the rows of a request attend to (docs/research/decoding-rules.md#visible-keys).

    Attributes:
        origin: start of the first block. A row before it attends to the keys up to it.
        block_size: a row attends to the keys up to the end of its block, of so many positions.
        causal_end: rows before this position attend to the keys up to their own.
    """

    origin: int
    block_size: int
    causal_end: int = 0


class Strategy:
    """A decoding strategy. There is one instance per engine, without state: all state of a request is in `Request`.

    In each step, the engine calls `plan_forward`, runs the forward pass, and calls `update`. If the step is not
    scheduled, `plan_forward` is called again. It is idempotent: the second call changes nothing.

    The runner has the tokens and states of requests, and stores the results of each step. A strategy adds the ranges of
    other content that it writes to ``Request.pending_writes``.

    The engine forwards final tokens itself, before the open blocks or together with them: prompts, finished blocks, or
    both after a preemption. A strategy only limits the chunk size. ``Request.kv.reused_spans`` has rows of open
    blocks that later steps read and do not forward. After a preemption the engine forwards them again, with the
    ids that they had.

    Attributes:
        fields: fields that requests may set for the strategy. ``Request.values`` has their values.
        defaults: default values of fields of the algorithms, instead of those of the family.
        block_layout: positions of the blocks.
        buffer_size: maximum number of open blocks, which are denoised at once.
        prefix_cacheable: K/V of a prefix does not depend on the tokens after it.
        requires_full_prompt: the prompt is forwarded in one step. `max_rows` includes it.
        sees_suffix: positions attend to all later ones of the output, also to those of later blocks.
        default_max_tokens: `max_tokens` of requests that set none. None: the default of the route.
        uniform_noise: open blocks contain noise instead of masks.
        supports_grammar: unmasked tokens stay, and constrained decoding can unmask from left to right.
        short_blocks: sizes below that of `block_layout` for which CUDA graphs are captured too, ascending.
        shared_window: all open rows have the sliding window of the first one
            (docs/research/decoding-rules.md#sliding-windows).
    """

    fields: tuple[Field, ...] = ()
    defaults: Mapping[str, Value] = {}
    block_layout: BlockLayout
    buffer_size: int = 1
    prefix_cacheable = True
    requires_full_prompt = False
    sees_suffix = False
    default_max_tokens: int | None = None
    uniform_noise = False
    supports_grammar = True
    short_blocks: tuple[int, ...] = ()
    shared_window = False

    def max_rows(self) -> int:
        """Returns the maximum rows per step of one request. At startup, a lower token budget is rejected."""
        raise NotImplementedError

    def total_len(self, prompt_len: int, max_tokens: int, values: Mapping[str, Value] = NO_VALUES) -> int:
        """Returns the number of positions of a request: the prompt, and the output including its last block.

        Args:
            values: those of ``decoding``. Without them it is the largest number of all requests.
        """
        return self.block_layout.of_request(values).total_len(prompt_len, max_tokens)

    def initial_final_len(self, prompt_len: int) -> int:
        """Returns the initial `num_final_tokens` of a request.

        By default this is the start of the block with the end of the prompt, which is opened with the rest of it.
        """
        return self.block_layout.block_start(prompt_len, prompt_len)

    def uncacheable_tail(self, request: Request) -> int:
        """Returns how many of the last final positions the request must forward even if they are cached.

        A strategy may sample the first open position from the logits of their rows. If no block is left, as
        after a preemption of a pinned answer, the step that finishes the request needs at least one row.
        """
        return int(request.num_final_tokens == len(request.tokens))

    def required_tokens(self, request: Request) -> int:
        """Returns how many positions need pages before the first step, including prefill."""
        return min(request.num_final_tokens + self.block_layout.size, len(request.tokens))

    def prefill_chunk_size(self, request: Request, budget: int) -> int:
        """Returns how many rows after ``request.num_computed_tokens`` to forward if final tokens exceed `budget`
        rows. By default these are complete blocks, if blocks are aligned (docs/research/decoding-rules.md#prefill).
        """
        return budget // self.block_layout.alignment * self.block_layout.alignment

    def plan_forward(self, request: Request) -> ForwardSpan:
        """Opens blocks, moves `num_final_tokens` past finished ones, and returns the rows of this step.

        If nothing changed, it returns the object in ``request.last_scheduled``, which saves most of the host time.
        """
        raise NotImplementedError

    def successors(self, request: Request, span: ForwardSpan) -> Successors:
        """Returns the next forwards of a request without the results of this one, which samples the block of `span`.

        By default they are not known, and the device waits until the results are processed. The result is kept while
        `plan_forward` returns the same span.
        """
        return Successors()

    def visible_keys(self, request: Request, num_final_tokens: int) -> VisibleKeys:
        """Returns which keys the rows of a request attend to: by default those up to the end of their block.

        The K/V of every visible key is cached, or the same step writes it.

        Args:
            num_final_tokens: that of the request in the step.
        """
        origin = request.prompt_len if self.block_layout.from_prompt else 0
        return VisibleKeys(origin, self.block_layout.size)

    def update(self, request: Request, sampled: list[Block], results: BlockResults, first: int) -> None:
        """Writes the results of a step into the request, and moves `num_final_tokens` past finished blocks.

        If the request finishes, it sets `finish_reason` and `end`. `num_final_tokens` is then the end of the tokens to
        cache.

        Args:
            sampled: blocks that were sampled.
            first: index of the first of them in `results`; the others follow.
        """
        raise NotImplementedError


def require_single_block(context: DecodingContext) -> None:
    """Raises ConfigError if --buffer-size exceeds 1, for strategies that denoise one block at a time."""
    if context.buffer_size not in (None, 1):
        raise ConfigError(
            f"--buffer-size {context.buffer_size}: this model's blocks are decoded one at a time; leave it out"
        )


def max_request_len(strategy: Strategy, max_model_len: int) -> int:
    """Returns the maximum of `total_len`, which the longest prompt has, because blocks may begin at its end."""
    return strategy.total_len(max_model_len - 1, 1)


def max_request_pages(strategy: Strategy, max_model_len: int, page_size: int) -> int:
    """Returns the number of pages of a request with the maximum length. Whole page groups are allocated."""
    group = max(page_size, strategy.block_layout.alignment)
    return -(-max_request_len(strategy, max_model_len) // group) * (group // page_size)


def longest_request(strategy: Strategy, limit: int, page_size: int, pages: int) -> int:
    """Returns the largest `max_model_len` up to `limit` for which a request fits into `pages` pages; 0 if none does.

    Below the limit it is a multiple of `LENGTH_STEP`, if there is one.
    """
    found = bisect_right(range(1, limit + 1), pages, key=lambda n: max_request_pages(strategy, n, page_size))
    return found if found == limit else found // LENGTH_STEP * LENGTH_STEP or found
