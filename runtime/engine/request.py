"""All state of one request: its tokens, what each position is, its open blocks, and where its K/V lies."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runtime.algorithms.base import Rule, Stat, get_rule
from runtime.algorithms.resolved_params import terms
from runtime.engine.logits_processors_state import Shaper
from runtime.engine.logprobs_request import Told

if TYPE_CHECKING:  # the runner needs this module's constants where the messages' package is not installed
    from runtime.engine.scheduled_request import Turn
    from runtime.engine.step_plan import Mixture
    from runtime.request.engine_messages import FinishReason, RequestSpec
    from runtime.structured_output.grammar_matcher import GrammarMatcher

# States of a position; they never follow from the token id (docs/decoding-rules.md#position-states).
FIXED = 0  # prompt, or given: never written
MASKED = 1
FILLED = 2


class Status(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"  # prefilling or decoding: `Request.prefilling` tells
    FINISHED = "finished"


class Block:
    """An open block: where it is and how far it has come. Its content lives in the request's arrays, into which it
    looks; once that is final and what comes before it is too, the block leaves `Request.blocks` and `Request.settled`
    passes it."""

    __slots__ = (
        "advanced",
        "ended",
        "first_eos",
        "first_masked",
        "free",
        "given_steps",
        "has_eos",
        "initial_masks",
        "kept",
        "masks",
        "may_force",
        "mixture",
        "post_edit_steps",
        "progress",
        "remasked",
        "same_token_ratio",
        "size",
        "source",
        "start",
        "state",
        "steps",
        "tokens",
        "unseen",
    )

    def __init__(self, request: Request, start: int, end: int, *, shift: int = 0) -> None:
        """Of the positions ``[start, end)``, of which none is FILLED. `shift`: by how many positions the rows whose
        logits belong to its positions come before them."""
        size = end - start
        self.tokens = request.tokens[start:end]
        self.state = request.state[start:end]
        content = self.state.tobytes()  # a few positions: a search of bytes takes a tenth of numpy's
        masks = content.count(MASKED)
        self.start = start  # absolute position of the first token
        self.size = size
        self.source = start - shift  # position of the row whose logits belong to the first token
        self.masks = masks  # MASKED positions now
        self.initial_masks = masks
        self.free = masks  # positions that are not fixed
        self.progress = 0.0 if masks else 1.0
        self.same_token_ratio = 0.0 if masks and request.editing else 1.0
        self.first_masked = content.index(MASKED) if masks else size  # offset of the first MASKED position, or the size
        self.first_eos = size  # offset of the first FILLED end-of-sequence id, its size if none
        self.has_eos = False  # an EOS that counts is FILLED somewhere in it
        self.steps = 0  # steps it took part in while ACTIVE
        self.may_force = True  # in the step being planned
        self.unseen = 0  # leading positions whose logits the step being planned does not compute; none is MASKED
        self.given_steps = 0  # its share of the request's total; 0: its rule says how many
        self.advanced = 0  # steps in which it might force
        self.post_edit_steps = 0  # editing: steps that began with no mask
        self.ended = masks == 0  # content is final; it only waits for its predecessor
        self.remasked: npt.NDArray[np.bool_] | None = None  # positions masked again once already
        self.kept: npt.NDArray[np.float64] | None = None  # [B, records, numbers] what its rule remembers (Rule.keeps)
        self.mixture: Mixture | None = None  # what its FILLED positions' embeddings are made of as long as it is open


@dataclass(frozen=True, slots=True)
class Forwarded:
    """Rows of an open part as a step forwarded them: ``tokens`` [n] from position `first` on."""

    first: int
    tokens: npt.NDArray[np.int64]


class Request:
    """One request in the engine.

    `tokens` and `state` cover the prompt and the answer, as far as its last block reaches; a MASKED position holds the
    mask id. Content below `settled` is final (the prompt, finished blocks); K/V below `cached` is valid and final, and
    what lies between the two is forwarded before, or together with, whatever comes after it. `blocks` are open.

    Args:
        size: positions of `tokens` and `state`. settled: how many are final from the start.
        rules: the acceptance rules, by their names. eos: what ends any answer.
    """

    def __init__(
        self,
        spec: RequestSpec,
        *,
        size: int,
        settled: int,
        mask_id: int,
        seq: int,
        rules: Callable[[str], Rule] = get_rule,
        eos: Sequence[int] = (),
    ) -> None:
        self.spec = spec
        self.seq = seq  # order of arrival
        self.status = Status.WAITING
        self.prompt_len = len(spec.prompt)
        self.end = self.prompt_len + spec.max_tokens  # first position that is not part of the answer
        self.tokens = np.empty(size, dtype=np.int64)
        self.tokens[: self.prompt_len] = spec.prompt
        self.tokens[self.prompt_len :] = mask_id
        self.state = np.zeros(size, dtype=np.int8)  # FIXED
        self.state[self.prompt_len :] = MASKED
        for offset, token in spec.given.items():
            self.tokens[self.prompt_len + offset] = token
            self.state[self.prompt_len + offset] = FIXED

        self.cached = 0
        self.settled = settled
        self.prefilled = settled  # below it is the prompt, or what a preemption dropped
        self.blocks: list[Block] = []
        self.next_start = settled  # where the next block opens
        self.kept: list[Forwarded] = []  # whose K/V the next step reads though it does not forward them, in order
        self.dropped: list[Forwarded] = []  # those that have to be forwarded again first
        self.nfe = 0
        self.opened = False  # blocks of this step are open (docs/decoding-rules.md#opening-blocks)
        self.last_served = -1  # number of the engine step that last served it
        self.turn: Turn | None = None  # of the last step that fed its open part, since it holds its pages
        self.stays = False  # the next step's turn is that one again; its block is not written yet but for its tokens
        self.stable = self.prompt_len  # positions below are final text
        self.sent = self.prompt_len  # positions below were reported
        self.hit_eos = False
        self.eos_seen = False  # an EOS that counts has been FILLED at some time
        self.told = spec.report != "final"  # of every step
        self.shows = spec.report == "denoise"  # what each left
        self.shown: tuple[int, list[int], list[int]] = (0, [], [])
        self.reason: FinishReason | None = None
        self.run = RepetitionRun(self.prompt_len)
        values: dict[str, Any] = spec.decoding.values
        self.values = values  # of the strategy's fields and the rule's
        self.rule = rules(spec.decoding.algorithm)
        self.editing = self.rule.edits
        self.alone = spec.decoding.force_single_batch
        self.watched = spec.max_nfe is not None or spec.max_repetition_run is not None
        agreed = terms(self.rule, values)
        # filled positions may still change: sampled too, and only final blocks' text is stable
        self.unstable = agreed.unstable
        self.wants = agreed.asks  # of the head: Stat
        self.ends = bool(spec.stop_ids) or not spec.ignore_eos  # some token ends the answer
        self.shaper = None if spec.shaping is None else Shaper(spec, spec.shaping, eos)
        self.told_of = None if spec.logprobs is None else Told(size, spec.logprobs)
        self.constraint: GrammarMatcher | None = None  # the answer keeps to; has taken all of it that is FILLED
        self.merge = agreed.merge  # how embeddings are made of its blocks' `mixture`

        self.adapter = spec.adapter
        self.slot = -1  # of its adapter on the device, while it runs
        self.salt = spec.cache_salt  # in its keys of the prefix cache
        self.row = -1  # row of the page table
        self.units: list[int] = []
        self.held = 0  # tokens that the units hold
        self.published = 0  # leading units that the prefix cache knows
        self.chain: list[bytes] = []  # keys of leading units whose content is final, wherever their K/V is
        self.cached_tokens: int | None = None  # of the prompt, whose K/V another request computed
        self.preempted = False
        self.arrived = time.perf_counter()
        self.queue_seconds: float | None = None
        self.prefill_seconds: float | None = None
        # what its rule reads, [len(Rule.columns)], constant over the request's life
        drawn = (spec.temperature, spec.top_p, spec.top_k, spec.min_p)
        self.params = np.array([*drawn, *agreed.row], dtype=np.float64)

    @property
    def led(self) -> bool:
        """Its masks are filled from the left by something else than its rule, in one block at a time."""
        return self.constraint is not None or bool(self.spec.recited)

    @property
    def prefilling(self) -> bool:
        return self.cached < self.prefilled

    @property
    def answered(self) -> bool:
        """All that is left is to write the K/V of its last blocks, for others."""
        return self.reason is not None

    def answer(self) -> npt.NDArray[np.int64]:
        """The ids that stand in the answer, given ones too, whatever is masked between them."""
        here = slice(self.prompt_len, self.end)
        answer: npt.NDArray[np.int64] = self.tokens[here][self.state[here] != MASKED]
        return answer

    def first_end(self, block: Block, first_eos: int) -> int:
        """Offset of a block's first FILLED token that ends the answer, its size if none does."""
        at = block.size if self.spec.ignore_eos else first_eos
        if self.spec.stop_ids:
            found = np.flatnonzero(np.isin(block.tokens, self.spec.stop_ids) & (block.state == FILLED))
            at = min(at, int(found[0])) if len(found) else at
        return at

    def show(self, start: int) -> None:
        """Remember the blocks from `start` on as a denoise event tells them: start, ids, offsets of what is masked."""
        here = slice(start, self.next_start)
        self.shown = (start, self.tokens[here].tolist(), np.flatnonzero(self.state[here] == MASKED).tolist())

    def drop_kv(self) -> None:
        """Forget where the K/V was (preemption): what was decoded stays, its K/V is computed again. An open block of
        which the device alone knows how its steps went begins again, with the same random numbers."""
        if self.wants & Stat.SIGNAL:
            self.nfe -= sum(block.steps for block in self.blocks)
            self.blocks = []
            self.next_start = self.settled
        self.preempted = True
        self.cached = 0
        self.prefilled = self.settled
        self.dropped = list(self.kept)
        self.units = []
        self.held = 0
        self.published = 0


class RepetitionRun:
    """Longest run of one token over a growing prefix, looked at once a position (max_repetition_run)."""

    __slots__ = ("length", "position", "token")

    def __init__(self, position: int) -> None:
        self.position = position
        self.token = -1
        self.length = 0

    def advance(self, tokens: npt.NDArray[np.int64], end: int, limit: int) -> int | None:
        """Scan ``tokens[position:end]``; the position just after the run's `limit`-th token, or None."""
        for token in tokens[self.position : end].tolist():
            self.position += 1
            self.length = self.length + 1 if token == self.token else 1
            self.token = token
            if self.length >= limit:
                return self.position
        return None

    def copy(self) -> RepetitionRun:
        other = RepetitionRun(self.position)
        other.token, other.length = self.token, self.length
        return other
