"""The part of a step that belongs to one request."""

from __future__ import annotations

from dataclasses import dataclass, field

from runtime.engine.request import Block, KVSpan, Request
from runtime.engine.step_plan import Ints


@dataclass(slots=True, eq=False)
class ForwardSpan:
    """Positions ``[first, last)`` of the open blocks that a step forwards, and the blocks to sample.

    The strategy sets `may_force` of each of these blocks: whether the algorithm may unmask the best position below its
    threshold. ``Strategy.update`` counts such steps in `num_steps_forcing`. A span without blocks only writes K/V: it
    is no denoising step and has no output.
    """

    first: int
    last: int
    blocks: list[Block]


@dataclass(slots=True, eq=False)
class ScheduledRequest:
    """Positions ``[first, last)`` of a request that a step forwards.

    Read-only: while the layout of a request is stable, all steps use the same object, and what is derived from it is
    reused too.

    Attributes:
        span: the part in open blocks. None: all rows are final tokens, or they are recomputed.
        recompute: rows of open blocks to recompute after a preemption, with the ids that they had.
        stable_layout: the span has one block, and ``Strategy.steady`` returned true for it.
        blocks: blocks to sample.
        is_denoise_step: whether this is a denoising step of the request.
        tokens: [rows], a view of the current tokens of the request, or the tokens of `recompute`.
    """

    request: Request
    first: int
    last: int
    span: ForwardSpan | None
    recompute: KVSpan | None = None
    stable_layout: bool = False
    blocks: list[Block] = field(init=False)
    is_denoise_step: bool = field(init=False)
    tokens: Ints = field(init=False)

    def __post_init__(self) -> None:
        span = self.span
        self.blocks = [] if span is None else span.blocks
        self.is_denoise_step = span is not None and span.first < span.last and bool(span.blocks)
        self.tokens = self.request.tokens[self.first : self.last] if self.recompute is None else self.recompute.tokens
