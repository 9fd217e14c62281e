"""Input and output of one step of the model runner, as numpy arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.algorithms.base import UnmaskingAlgorithm
from runtime.kernels.segments import COUNT, Segment
from runtime.structured_output.grammar_matcher import GrammarMatcher

Ints = npt.NDArray[np.int64]
Ints32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float64]
SoftTokens = tuple[Ints, Floats]  # ids and probabilities of the tokens in soft embeddings, [B, count] each

# States of a position. They do not follow from the token id (docs/research/decoding-rules.md#position-states).
FIXED = 0  # prompt or pinned token of the output: never changes
MASKED = 1
UNMASKED = 2
STATE_BITS, REMASKED = 3, 4  # of a stored state; REMASKED: the position was masked again in an earlier step


@dataclass(slots=True)
class BlockNumbers:
    """Numbers of a block that algorithms read, by the names of ``algorithms.base.BlockBatch``.

    Attributes:
        must_advance: whether the next step must unmask a position even if none passes the threshold.
        num_steps: steps with `must_advance`.
        initial_masks: positions that are not FIXED.
        step_budget: the block's part of the request's total steps. 0: the algorithm decides.
        post_edit_steps: steps that began without a mask.
    """

    must_advance: bool = True
    num_steps: int = 0
    initial_masks: int = 0
    step_budget: int = 0
    post_edit_steps: int = 0


BLOCK_NUMBERS = tuple(field.name for field in fields(BlockNumbers))
MUST_ADVANCE, NUM_STEPS = map(BLOCK_NUMBERS.index, ("must_advance", "num_steps"))

NO_LOGPROBS = -1  # number of top logprobs of a request without logprobs


@dataclass(frozen=True)
class AlgorithmBatch:
    """The blocks of a step that use one unmasking algorithm.

    Attributes:
        members: [m], indices of its blocks in `DenoiseBlocks`.
        params: [m, columns], the parameters of each block.
        required_stats: a mask of the statistics that any of these blocks needs.
        history: [m, B, records, fields], values that the algorithm recorded in earlier steps. One more record is 0;
            the step writes it.
    """

    algorithm: UnmaskingAlgorithm
    members: Ints
    params: Floats
    required_stats: int
    history: Floats | None = None


@dataclass(frozen=True)
class LogitsProcessorBatch:
    """Inputs of the logits processors of `r` requests (``worker.logits_processors``).

    Shorter lists of ids are padded by repeating an id with the same values.

    Attributes:
        request_index: [n], each block's row in the arrays of requests; -1 without logits processors.
        output_offset: [n], offset of each block in the output; negative for a block with the end of the prompt.
        current_token: [n, B], the token at each position if it counts for penalties; -1 otherwise.
        ids: [r, ids], tokens whose logits change.
        repetition_counts: [r, ids], occurrences in the prompt and the output; 0 without a repetition penalty.
        output_counts: [r, ids], occurrences in the output.
        bias: [r, ids].
        min_tokens: [r, ids], the token is forbidden at output positions below this one.
        penalties: [r, 3], repetition, presence and frequency.
    """

    request_index: Ints
    output_offset: Ints
    current_token: Ints
    ids: Ints
    repetition_counts: Ints
    output_counts: Ints
    bias: Floats
    min_tokens: Ints
    penalties: Floats


@dataclass(frozen=True)
class GrammarBlock:
    """A block with structured output: the grammar fills its masks instead of the unmasking algorithm.

    Attributes:
        block: its index in `DenoiseBlocks`.
        first_masked: offset of its first MASKED position; all later positions are MASKED too.
        size: number of positions.
        num_left: number of tokens of the output from `first_masked` on, at most.
        threshold: minimum confidence of every token after the first one of a step.
        constraint: grammar matcher; it has accepted all tokens before `first_masked`.
    """

    block: int
    first_masked: int
    size: int
    num_left: int
    threshold: float
    constraint: GrammarMatcher


class ForcedTokens(NamedTuple):
    """A block of a request with forced tokens: they fill its masks instead of the unmasking algorithm.

    Attributes:
        block: its index in `DenoiseBlocks`.
        first_masked: offset of its first MASKED position.
        tokens: ids of the positions from `first_masked` on.
    """

    block: int
    first_masked: int
    tokens: tuple[int, ...]


class BlockRead(NamedTuple):
    """A block of a read. The step leaves its masks.

    Attributes:
        block: its index in `DenoiseBlocks`.
        offsets: offsets of its masks in the output.
        ids: the tokens whose logprobs are read.
    """

    block: int
    offsets: list[int]
    ids: list[int]


@dataclass(frozen=True)
class DenoiseBlocks:
    """The `n` blocks that a step denoises, in the order of their requests.

    `B` is the size of the largest block. Smaller blocks are padded with FIXED positions.

    Attributes:
        rows: [n], row whose logits belong to the first position of each block; the next rows follow it.
        req_slot: [n], slot of each block's request in the runner, which has its content.
        start: [n], position of the first token.
        size: [n], number of positions.
        state: [n, B], the host's copy: FIXED, MASKED or UNMASKED.
        sampled: [n, B], positions whose logits the algorithms need.
        numbers: [n, len(BLOCK_NUMBERS)].
        sampling_params: [n, 4], temperature, top_p, top_k and min_p; temperature 0 is greedy. None: all are greedy.
        groups: one per algorithm; each block belongs to one.
        draws: [n, 3], see ``kernels.uniform_numbers``. None: no block needs random numbers.
        uniform_noise: whether some algorithm draws new tokens from uniform random numbers.
        self_conditioned: whether some algorithm uses self-conditioning.
        logits_processors: None without logits processors.
        grammar_blocks, forced_tokens, reads: blocks that no algorithm fills; none of their positions is sampled.
        num_logprobs: [n], number of top tokens whose logprobs the request reads; NO_LOGPROBS: it reads none.
        processed_logprobs: [n], these logprobs are of the distribution that candidates are drawn from. None: of none.
        num_candidates: [n], number of most probable tokens that the request reads of positions that stay MASKED.
            None: no request reads any.
        tokens: [n, B], the host's copy of the content; None if no request reads logprobs or candidates.
        per_request: the same blocks, split by request, for batch-invariant sampling. (): sampled together.
    """

    rows: Ints
    req_slot: Ints
    start: Ints
    size: Ints
    state: Bytes
    sampled: Bools
    numbers: Ints
    sampling_params: Floats | None
    groups: tuple[AlgorithmBatch, ...]
    draws: Ints | None = None
    uniform_noise: bool = False
    self_conditioned: bool = False
    logits_processors: LogitsProcessorBatch | None = None
    grammar_blocks: tuple[GrammarBlock, ...] = ()
    forced_tokens: tuple[ForcedTokens, ...] = ()
    reads: tuple[BlockRead, ...] = ()
    num_logprobs: Ints | None = None
    processed_logprobs: Bools | None = None
    num_candidates: Ints | None = None
    tokens: Ints | None = None
    per_request: tuple[DenoiseBlocks, ...] = ()

    @property
    def reads_logits(self) -> bool:
        """Whether a request reads logprobs or candidates, which need the hidden states after the sampling."""
        return self.num_logprobs is not None or self.num_candidates is not None


@dataclass(frozen=True)
class SoftEmbeddingRows:
    """Input rows with soft embeddings (``runtime.layers.embedding``).

    Attributes:
        rows: [m].
        ids: [m, count], tokens of each soft embedding.
        probs: [m, count]; 0 for padding.
        params: [m, 3], as in ``algorithms.base.SoftEmbeddingParams``.
    """

    rows: Ints
    ids: Ints
    probs: Floats
    params: Floats


class StateWrite(NamedTuple):
    """Content that the host has changed, for the tables of ``worker.request_states``.

    Attributes:
        slot: `Request.req_slot`.
        start: first position.
        tokens: [n].
        states: [n], states of the positions, plus REMASKED.
    """

    slot: int
    start: int
    tokens: Ints
    states: Bytes


class PageWrites(NamedTuple):
    """Changes of the page tables of requests, int32 [n] each: `Request.req_slot`, index in its page table, and page."""

    slots: Ints32
    indices: Ints32
    pages: Ints32


class TableWrites(NamedTuple):
    """Changes of the tables of tokens, states and pages."""

    writes: tuple[StateWrite, ...] = ()
    page_writes: PageWrites | None = None


@dataclass(frozen=True)
class StepPlan:
    """One forward, and the blocks to sample after it.

    Attributes:
        segments: int32 [n, columns], the rows of each request: ``kernels.segments.Segment``.
        tokens: [rows]. None: those of the requests, which the runner has.
        page_table: [n, pages], pages of each request. None: those of the requests, which the runner has.
        active_lora_modules: mask of the modules that the adapters of the rows may change, see ``ForwardBatch``.
        writes, page_writes: what the runner stores before the forward.
        blocks: None if there are none, or if they follow while the device runs the forward (``InputBuilder.blocks``).
    """

    segments: Ints32
    tokens: Ints | None = None
    page_table: Ints32 | None = None
    active_lora_modules: int = 0
    soft_embeddings: SoftEmbeddingRows | None = None
    writes: tuple[StateWrite, ...] = ()
    page_writes: PageWrites | None = None
    blocks: DenoiseBlocks | None = None

    @property
    def reads_tables(self) -> bool:
        """Whether all tokens and pages are those that the runner has of the requests."""
        return self.tokens is None and self.page_table is None and self.soft_embeddings is None

    @property
    def num_rows(self) -> int:
        return int(self.segments[:, COUNT].sum())


class BlockLogprobs(NamedTuple):
    """Logprobs of the positions of a block that a step changed.

    Attributes:
        offsets: [n], offsets in the block.
        values: [n], logprobs of the current tokens.
        top_ids: [n, top], the most probable tokens in descending order.
        top_values: [n, top], their logprobs.
    """

    offsets: Ints
    values: Floats
    top_ids: Ints
    top_values: Floats


LogprobsOf = Callable[[int], BlockLogprobs | None]  # None: the step has none of the block


@dataclass(frozen=True)
class BlockResults:
    """The sampled blocks after a step. The lists have one entry per block.

    Attributes:
        tokens: [n, B].
        state: [n, B], FIXED, MASKED or UNMASKED.
        remasked: [n, B], positions that were masked again in this step.
        masks: number of MASKED positions.
        first_masked: offset of the first MASKED position, B if there is none.
        first_eos: offset of the first UNMASKED end-of-sequence id, B if there is none.
        num_updated: UNMASKED positions that this step unmasked or changed.
        edits, remasks: number of positions that were edited or masked again.
        forced: whether the best position was unmasked below the threshold.
        finished: whether the algorithm finished the block: its steps no longer change its tokens.
        history: block -> [B, records, fields], for algorithms that record values.
        soft_tokens: block -> tokens of the soft embeddings of its UNMASKED positions.
        logprobs: returns those of a block, for requests that read them; it waits for the device. None: of no block.
        candidates: the same for the most probable tokens of positions that stay MASKED.
        reads: block -> logprobs of its `BlockRead`, then the highest of any token, float64 [offsets, ids + 1].
        allowed: by block and offset, the bitmask of the tokens that a grammar allowed where one was chosen, int32
            [ceil(vocab / 32)]; None where it allowed no other. Only for requests with processed logprobs.
    """

    tokens: Ints
    state: Bytes
    remasked: Bools
    masks: list[int]
    first_masked: list[int]
    first_eos: list[int]
    num_updated: list[int]
    edits: list[int]
    remasks: list[int]
    forced: list[bool]
    finished: list[bool]
    history: dict[int, Floats]
    soft_tokens: dict[int, SoftTokens]
    logprobs: LogprobsOf | None = None
    candidates: LogprobsOf | None = None
    reads: dict[int, Floats] = field(default_factory=dict)
    allowed: dict[tuple[int, int], Ints32 | None] = field(default_factory=dict)


# Rows of the array `numbers` [len(COUNTERS), n] of sampled blocks, by their names in BlockResults.
COUNTERS = ("masks", "num_updated", "edits", "remasks", "first_masked", "first_eos", "forced", "finished")


class SampledBlocks(NamedTuple):
    """The sampled blocks of a step as they are on the device, before grammars.

    Attributes:
        tokens, state: [n, B].
        first_masked, first_eos: [n], as in `BlockResults`.
    """

    tokens: Ints
    state: Bytes
    first_masked: Ints
    first_eos: Ints


NO_RESULTS = BlockResults(  # a step without sampled blocks
    tokens=np.empty((0, 0), np.int64), state=np.empty((0, 0), np.int8), remasked=np.empty((0, 0), np.bool_), masks=[],
    first_masked=[], first_eos=[], num_updated=[], edits=[], remasks=[], forced=[], finished=[],
    history={}, soft_tokens={},
)  # fmt: skip


def block_causal_plan(
    tokens: Ints, first: Ints, counts: Ints, page_table: Ints32, *, block_size: int,
    blocks: DenoiseBlocks | None = None,
) -> StepPlan:  # fmt: skip
    """Makes a plan without a scheduler, for warm-up.

    A row attends to all positions up to the end of its block, as far as they are in the plan. All rows are editable.

    Args:
        tokens: [rows], one request after the other.
        first: [requests], position of each request's first row.
        counts: [requests], rows of each request.
        page_table: [requests, pages].
    """
    spans = enumerate(zip(first.tolist(), counts.tolist(), strict=True))
    segments = [Segment(n, start, count, 0, block_size, 0, start + count) for n, (start, count) in spans]
    return StepPlan(np.array(segments, dtype=np.int32), tokens, page_table, blocks=blocks)
