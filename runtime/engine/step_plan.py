"""What the scheduler asks of the runner for one step, and what comes back: plain numpy arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.kernels.forward_batch import make_query_tiles

if TYPE_CHECKING:
    from runtime.engine.logprobs_request import Written
    from runtime.structured_output.grammar_matcher import Constraint

Ints = npt.NDArray[np.int64]
Ints32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float64]
Mixture = tuple[Ints, Floats]  # tokens for each of a block's positions, and their probabilities: [B, count] each


@dataclass(frozen=True)
class RulePlan:
    """The blocks that one acceptance rule decides, and its parameters for each."""

    rule: str
    members: Ints  # [m], numbers of the plan's blocks
    params: Floats  # [m, len(Rule.columns)]
    wants: int  # a `algorithms.base.Stat`: what any of them asks of the head
    kept: Floats | None = None  # [m, B, records, len(Rule.keeps)] what the rule remembers, and a record that is 0


@dataclass(frozen=True)
class Drawing:
    """How the positions of requests with a temperature draw; blocks without one have temperature 0."""

    limits: Floats  # [n, 4] temperature, top_p, top_k, min_p
    uniform: Floats  # [n, B] the requests' own random numbers


@dataclass(frozen=True)
class ShapingPlan:
    """Inputs of the logits processors of `r` requests (``engine.logits_processors_state``): the ids that each changes,
    and how. Shorter lists are padded: one id occurs several times."""

    request: Ints  # [n] of each of the plan's blocks its request's number, -1 where nothing is done
    first: Ints  # [n] where each block begins, in the answer; before it in one that holds the prompt's end
    own: Ints  # [n, B] the token that stands there and is counted, -1 elsewhere
    ids: Ints  # [r, ids]
    seen: Ints  # [r, ids]
    counts: Ints  # [r, ids]
    bias: Floats  # [r, ids]
    least: Ints  # [r, ids]
    penalties: Floats  # [r, 3]


@dataclass(frozen=True)
class Walk:
    """A block of a request whose answer keeps to a grammar: its rule fills none of its masks, the walk does."""

    block: int  # number of the plan's
    first: int  # offset of its first MASKED position; all that follow are MASKED too
    size: int  # positions of the block
    threshold: float  # confidence above which a token is taken that is not the step's first
    constraint: Constraint  # has taken all that comes before


class Recital(NamedTuple):
    """A block of a request that recites a text: its rule fills none of its masks, what comes next in the text does."""

    block: int  # number of the plan's
    first: int  # offset of its first MASKED position
    tokens: tuple[int, ...]  # that stand there from now on


@dataclass(frozen=True)
class BlockPlan:
    """The `n` blocks that this step denoises, in the order of their requests; `B` is the largest one's number of
    positions, and what a smaller one lacks is FIXED.

    `sampled` marks the positions whose logits the rules need.
    """

    rows: Ints  # [n] row whose logits belong to each block's first position; those of the others follow it
    tokens: Ints  # [n, B]
    state: Bytes  # [n, B] FIXED, MASKED or FILLED
    sampled: Bools  # [n, B]
    may_force: Bools  # [n]
    advanced: Ints  # [n]
    initial_masks: Ints  # [n]
    given_steps: Ints  # [n]
    post_edit_steps: Ints  # [n]
    remasked: Bools | None  # [n, B]
    drawing: Drawing | None  # None: all take the likeliest
    groups: tuple[RulePlan, ...]  # each block is in one
    noise: Floats | None = None  # [n, B] the requests' own random numbers, for what a noisy rule makes noise again
    place: Ints | None = None  # [n]: where the runner keeps what a model is told of each block's last step
    shaping: ShapingPlan | None = None
    walks: tuple[Walk, ...] = ()  # these two: blocks filled otherwise; none of their positions is sampled
    recitals: tuple[Recital, ...] = ()
    told: Ints | None = (
        None  # [n]: how many of the likeliest tokens to tell of each position written, -1: not even that
    )


@dataclass(frozen=True)
class MergedRows:
    """Rows whose embedding is not their token's, but made of several tokens' (``runtime.layers.embedding``)."""

    rows: Ints  # [m]
    ids: Ints  # [m, count]
    probs: Floats  # [m, count]; 0 where there are no more
    how: Floats  # [m, 3], as in ``algorithms.base.Merge``


@dataclass(frozen=True)
class ConditionedRows:
    """Blocks whose rows a model that conditions itself is told of their last steps."""

    rows: Ints  # [m], the first of each block
    place: Ints  # [m], as in BlockPlan


@dataclass(frozen=True)
class StepPlan:
    """One forward, as ``kernels.forward_batch.ForwardBatch`` describes its rows, and which blocks are sampled.

    `blocks` is worked out when it is first asked for: while a device is at the forward, which does not need it.
    `begin_next` is asked when all blocks go on: whether the next step is this one again, but for its tokens. Who is
    told so launches it, and it is run next.
    """

    tokens: Ints  # [rows]
    positions: Ints  # [rows]
    slots: Ints  # [rows]
    visible_end: Ints32  # [rows]
    window_origin: Ints  # [rows]
    open: Bools  # [rows]
    tiles: Ints32  # [tiles, 3]
    page_table: Ints32  # [requests, pages]
    sampled: Callable[[], BlockPlan | None]
    apart: Callable[[], list[BlockPlan]] = list  # the same, each request's blocks for themselves
    begin_next: Callable[[], bool] = bool
    merged: MergedRows | None = None
    conditioned: ConditionedRows | None = None
    adapters: Ints32 | None = None  # [rows] the slot of each row's adapter, -1: none; None: all have none
    adapted: int = 0  # which weights these may change, see ForwardBatch

    @cached_property
    def blocks(self) -> BlockPlan | None:
        return self.sampled()


@dataclass(frozen=True)
class BlockResults:
    """The sampled blocks after the step."""

    tokens: Ints  # [n, B]
    state: Bytes  # [n, B] FIXED, MASKED or FILLED
    remasked: Bools  # [n, B] masked again in this step
    masks: list[int]  # MASKED positions left
    first_masked: list[int]  # offset, B if none
    first_eos: list[int]  # offset of the first FILLED end-of-sequence id, B if none
    written: list[int]  # FILLED positions that held something else before the step
    edits: list[int]
    remasks: list[int]
    forced: list[bool]
    ended: list[bool]
    kept: dict[int, Floats]  # [B, records, len(Rule.keeps)] of the blocks whose rules remember something
    mixtures: dict[int, Mixture]  # of the blocks whose FILLED positions' embeddings are made of several tokens'
    logprobs: dict[int, Written] = field(default_factory=dict)  # of the blocks whose requests want them
    noisy: bool = False  # all of a block may change with every step, and none of it counts before the last

    @property
    def calm(self) -> list[bool]:
        """Which blocks go on: they have not ended; but for noisy ones some position is MASKED, and none holds an
        end-of-sequence id."""
        if self.noisy:
            return [not ended for ended in self.ended]
        size = self.tokens.shape[1]
        numbers = zip(self.masks, self.ended, self.first_eos, strict=True)
        return [masks > 0 and not ended and eos >= size for masks, ended, eos in numbers]


NO_RESULTS = BlockResults(  # of a step that sampled nothing
    tokens=np.empty((0, 0), np.int64), state=np.empty((0, 0), np.int8), remasked=np.empty((0, 0), np.bool_), masks=[],
    first_masked=[], first_eos=[], written=[], edits=[], remasks=[], forced=[], ended=[], kept={}, mixtures={},
)  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """Rows of requests end to end, so many of each. Shared between steps: not to be written to."""

    owner: Ints  # [rows] each row's request
    starts: Ints  # [requests] each request's first row
    within: Ints  # [rows] how many of its request's rows come before it
    tiles: Ints32  # [tiles, 3]

    def positions(self, first: Ints) -> Ints:
        """[rows], where those of request n begin at ``first[n]``."""
        return self.within + first[self.owner]


@lru_cache(maxsize=8)  # a batch that only denoises has the same one in every step
def lay_out(counts: tuple[int, ...]) -> Layout:
    """`counts`: rows of each request."""
    rows = np.array(counts, dtype=np.int64)
    owner = np.arange(len(rows)).repeat(rows)
    starts = rows.cumsum() - rows
    return Layout(owner, starts, np.arange(len(owner)) - starts[owner], make_query_tiles(rows))


def block_causal_plan(
    tokens: Ints, first: Ints, counts: Ints, page_table: Ints32, *, page_size: int, block_size: int,
    blocks: BlockPlan | None = None,
) -> StepPlan:  # fmt: skip
    """A step of requests that no scheduler knows: warm-up, benchmarks, whole sequences. Rows see to the end of their
    own block, or of what is fed of it, and count as open."""
    layout = lay_out(tuple(counts.tolist()))
    owner, positions = layout.owner, layout.positions(first)
    page, offset = np.divmod(positions, page_size)
    whole_blocks = (positions // block_size + 1) * block_size
    return StepPlan(
        tokens=tokens,
        positions=positions,
        slots=page_table[owner, page] * np.int64(page_size) + offset,
        visible_end=np.minimum(whole_blocks, (first + counts)[owner]).astype(np.int32),
        window_origin=positions,
        open=np.ones(len(positions), dtype=np.bool_),
        tiles=layout.tiles,
        page_table=page_table,
        sampled=lambda: blocks,
    )
