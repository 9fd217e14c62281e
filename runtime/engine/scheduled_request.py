"""What one request does in a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from runtime.engine.request import Block, KVSpan, Request
from runtime.engine.step_plan import Ints


@dataclass(slots=True, eq=False)
class ForwardSpan:
    """What the open part of a request forwards in a step: the rows ``[first, last)`` by their positions, and of those
    blocks `blocks` are sampled. Each of them has its `may_force` set: whether it may take its best position though none
    is confident enough; `Strategy.apply` counts such steps in `advanced`. Without blocks the rows only write their K/V:
    that is no step of the request, and no news of it."""

    first: int
    last: int
    blocks: list[Block]


@dataclass(slots=True, eq=False)
class ScheduledRequest:
    """The rows ``[first, last)``, by their positions. Not to be written to: one that stays the same from step to step
    is one object, and so what was worked out of it stays too."""

    request: Request
    first: int
    last: int
    feed: ForwardSpan | None  # of its open part; None: the rows are settled ones, or `again`
    again: KVSpan | None = None  # what a preemption dropped of an open part, with the ids it had then
    steady: bool = False  # it is of one block, and see ``Strategy.steady``
    blocks: list[Block] = field(init=False)  # that are sampled
    denoises: bool = field(init=False)  # that is a step of the request
    tokens: Ints = field(init=False)  # [rows], as they are when they are looked at

    def __post_init__(self) -> None:
        feed = self.feed
        self.blocks = [] if feed is None else feed.blocks
        self.denoises = feed is not None and feed.first < feed.last and bool(feed.blocks)
        self.tokens = self.request.tokens[self.first : self.last] if self.again is None else self.again.tokens
