"""What a decoding strategy is to the engine: which blocks are open, what a step feeds, how results change state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from runtime.engine.request import Block, Request
from runtime.engine.scheduled_request import ForwardSpan
from runtime.engine.step_plan import BlockResults, Ints
from runtime.errors import ConfigError
from runtime.request.block_layout import Tiling
from runtime.request.field_spec import Field, Value


@dataclass(frozen=True)
class DecodingContext:
    """Facts of the engine that a strategy decides with."""

    block_size: int
    buffer_size: int | None  # None: the strategy's own default
    prefix_caching: bool
    max_model_len: int
    shift: bool = False  # the logits of a position are those of the row before it
    vocab_size: int = 0  # of the model, where noise is drawn from it


class Strategy(Protocol):
    """One instance an engine; it keeps no state of its own: everything of a request is in the request.

    A step goes: `open` (may be called again before the step is served: it acts once), the forward, then `apply`. What
    is settled needs nothing of the strategy but its `chunk`: it is forwarded before, or together with, the open part,
    whether it is a prompt, finished blocks, or both after a preemption. Of an open part ``Request.reused_kv_spans``
    holds what later steps read and do not forward: after a preemption the engine forwards that again, with the ids of
    then.

    Attributes:
        fields: what requests may set for the strategy; their values are in ``Request.values``.
        defaults: of fields of the rules, in place of the family's.
        tiling: where blocks lie.
        buffer_size: blocks denoised at once.
        shares_prefixes: whether the K/V of equal beginnings is the same whatever comes after them.
        whole_prompts: a prompt is forwarded in one step, which `max_rows` allows for.
        default_max_tokens: of a request that names no length; None leaves it to whoever asks.
        noisy: what is open is noise instead of masks.
        walks: whether what it fills stays, and is filled from the left where a rule says so: answers can keep to a
            grammar.
        one_window: all open rows have the window of the first of them (docs/decoding-rules.md#sliding-windows).
    """

    fields: tuple[Field, ...]
    defaults: Mapping[str, Value]
    tiling: Tiling
    buffer_size: int
    shares_prefixes: bool
    whole_prompts: bool
    default_max_tokens: int | None
    noisy: bool
    walks: bool
    one_window: bool

    def max_rows(self) -> int:
        """The most rows one request's step feeds; a token budget below it is refused at start."""
        ...

    def positions(self, prompt_len: int, max_tokens: int) -> int:
        """How many a request covers: the prompt, and the answer as far as its last block reaches."""
        ...

    def settled(self, prompt_len: int) -> int:
        """How many of a request's positions are settled from the start."""
        ...

    def tail(self, request: Request) -> int:
        """How many of the last settled positions it forwards itself, whatever others have in the cache, because it
        samples from their rows."""
        ...

    def reach(self, request: Request) -> int:
        """Positions that need pages before its first step, prefill included."""
        ...

    def chunk(self, request: Request, room: int) -> int:
        """Rows from ``request.num_computed_tokens`` on that may be forwarded where not all that is settled fits `room`
        rows.
        """
        ...

    def open(self, request: Request) -> ForwardSpan:
        """Open the blocks that this step may open, settle what is final, and say what to feed: the very feed of
        ``request.last_scheduled`` where that is still it, which spares the host most of what a turn costs."""
        ...

    def steady(self, request: Request, span: ForwardSpan) -> bool:
        """Whether a feed of one block stays the request's feed, and its answer does not end, as long as that block goes
        on (``BlockResults.continuing``). What such a step did is then written while the next one runs."""
        ...

    def visible_end(self, requests: Sequence[Request], owner: Ints, positions: Ints) -> Ints:
        """Returns the `visible_end` of each row (docs/decoding-rules.md#visible-keys): [rows].

        Row r is at ``positions[r]`` of ``requests[owner[r]]``. The K/V of every visible key is in the cache or is
        written by the same step.
        """
        ...

    def apply(self, request: Request, sampled: list[Block], results: BlockResults, first: int) -> None:
        """Write results ``first, first + 1, ...`` of `sampled` into the request, and settle what is final; set `reason`
        and `end` if it ended, and then `settled` to how much of it others may want."""
        ...


def check_one_at_a_time(context: DecodingContext) -> None:
    """Raises ConfigError where several blocks are asked for of a strategy that denoises one at a time."""
    if context.buffer_size not in (None, 1):
        raise ConfigError(
            f"--buffer-size {context.buffer_size}: this model's blocks are decoded one at a time; leave it out"
        )


def longest_request(strategy: Strategy, max_model_len: int) -> int:
    """The most positions that any request covers: the longest prompt, for blocks may tile from its end."""
    return strategy.positions(max_model_len - 1, 1)


Maker = Callable[[DecodingContext], Strategy]
_STRATEGIES: dict[str, Maker] = {}
_ALSO_FITS: dict[str, tuple[str, ...]] = {}  # key -> families that it can decode though they do not list it


def register_strategy(key: str, families: tuple[str, ...] = ()) -> Callable[[Maker], Maker]:
    """Make a strategy selectable as ``--decoding-strategy KEY`` for families that list it and for `families`."""

    def add(make: Maker) -> Maker:
        if key in _STRATEGIES:
            raise ValueError(f"decoding strategy {key!r} is registered twice")
        _STRATEGIES[key] = make
        _ALSO_FITS[key] = families
        return make

    return add


def strategies() -> list[str]:
    return sorted(_STRATEGIES)


def also_fits(family: str) -> tuple[str, ...]:
    """Keys of the strategies that name this family themselves."""
    return tuple(key for key in strategies() if family in _ALSO_FITS[key])


def make_strategy(key: str, fits: tuple[str, ...], context: DecodingContext) -> Strategy:
    """The strategy called `key`, if the model's family can be decoded with it."""
    usable = [name for name in strategies() if name in fits]
    if not usable:
        raise ConfigError(
            f"a model of this family is decoded by {' or '.join(fits)}, which this version does not have; it has: "
            f"{', '.join(strategies())}"
        )
    if key not in usable:
        raise ConfigError(f"--decoding-strategy {key!r} does not fit this model; it can be: {', '.join(usable)}")
    return _STRATEGIES[key](context)
