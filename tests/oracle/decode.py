"""A naive decoder of the multi-block loop, without code of the engine.

See docs/research/decoding-rules.md#the-multi-block-loop.

With another ``Shape`` of blocks and rows and another attention mask it also decodes `d2f`.

It decodes one request without cache, pages and batch. Each step forwards the complete sequence again under an explicit
block-causal mask, and decides position by position in plain Python. Under this mask the output at a position depends
only on the blocks up to its own, and the content of final blocks never changes. So the result is that of an engine with
a cache. Prefill chunks, prefix hits, page sizes, preemption and other requests have no effect here, so they must have
none in the engine.

The status of a block is ACTIVE while it is open, TO_CACHE when it is final, and IN_CACHE when it is computed
(docs/research/decoding-rules.md#block-states). PROMPT is the state FIXED of the rules.

Details that the rules leave open, and that oracle and engine interpret in the same way:

1. Positions of the answer that were given from the start are PROMPT too; they are part of its text.
2. Opening: an EOS in a TO_CACHE block prevents opening too. A step that samples no block is not counted.
3. must_advance: the state before this forward and after this step's opening counts. A block opened in this step has
   progress 0. Progress and same_token_ratio are quotients of whole numbers in float64, then compared with >=.
4. Sampling: of equal logits, top-p keeps the lowest ids. Probabilities are renormalized after each filter. If rounding
   leaves no id whose cumulative probability is > u, the last id with a probability > 0 is drawn. conf is the id's
   probability in the last distribution. Probabilities are a softmax in the logits' own precision (float64 here).
5. `edit`: the penalty uses the token of the previous position as it is before this step; that of a prompt counts.
   UNMASKED positions use the argmax of the penalized logits and its probability at T = 1. A position that the last
   step unmasked counts as changed in same_token_ratio.
6. A denoise event per step shows the blocks that are ACTIVE or TO_CACHE after the step's transitions: `start` of the
   first of them, and their ids. MASKED positions have the mask id; a prompt's own mask id is shown but is not in
   `masked`. Blocks are shown whole, also where they pass E or the EOS. The step that ends the request has an event
   too. Newly stable ids are sent once; with a cap the last event has the rest of the answer.
7. A banned id can be in the sequence only in a prompt. It is never looked up as UNMASKED.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tests.oracle.block import ACTIVE, IN_CACHE, MASKED, PROMPT, TO_CACHE, UNMASKED, Block, Params, Shape, apply, decide
from tests.oracle.logits_processors import shaped

# ids of the complete sequence so far -> float64 logits [len(ids), vocab], block-causal, before any ban
LogitsOf = Callable[[Sequence[int]], np.ndarray]


@dataclass(frozen=True)
class Event:
    """A denoise event (docs/guide/streaming.md), with ids for text."""

    start: int
    tokens: list[int]
    masked: list[int]
    new_tokens: list[int]
    nfe: int


@dataclass(frozen=True)
class Result:
    tokens: list[int]
    nfe: int
    finish_reason: str
    events: list[Event]
    sequence: list[int]  # all ids of the sequence at the end; the mask id if MASKED
    blocks: list[Block]


def longest_run_cut(tokens: Sequence[int], limit: int) -> int | None:
    """Returns the number of tokens up to and with the one at which a run of equal tokens reaches `limit`, or None."""
    run = 0
    for n, token in enumerate(tokens):
        run = run + 1 if n and tokens[n - 1] == token else 1
        if run >= limit:
            return n + 1
    return None


def divided(total: int, masks: Sequence[int]) -> list[int]:
    """Returns the steps of each block: `total` divided evenly, with the remainder in the first blocks.

    A block has at most as many steps as masks. Further steps go to the other blocks.
    """
    steps = [0] * len(masks)
    for _ in range(min(total, sum(masks))):
        steps[min((n for n in range(len(masks)) if steps[n] < masks[n]), key=lambda n: (steps[n], n))] += 1
    return steps


def limited(stable: list[int], filled: list[int], nfe: int, p: Params) -> tuple[list[int], str | None]:
    """Returns the answer and the reason if a limit of the request ends it, or the stable tokens and None."""
    if p.max_nfe is not None and nfe >= p.max_nfe:
        return filled, "max_nfe"
    cut = None if p.max_repetition_run is None else longest_run_cut(filled, p.max_repetition_run)
    return (stable, None) if cut is None else (filled[:cut], "repetition")


class _Decode:
    """The multi-block loop for one request."""

    decide = staticmethod(decide)

    def __init__(
        self, logits_of: LogitsOf, prompt: Sequence[int], p: Params, shape: Shape, pinned: Mapping[int, int]
    ) -> None:
        self.logits_of, self.prompt, self.p, self.shape = logits_of, list(prompt), p, shape
        self.known = dict(enumerate(prompt)) | {len(prompt) + n: t for n, t in pinned.items()}
        self.end = len(prompt) + p.max_tokens
        self.first = shape.first(len(prompt))
        self.blocks: list[Block] = []
        self.nfe = 0
        self.sent = 0
        self.events: list[Event] = []
        if self.first < len(prompt):
            self.open_next()

    def open_next(self) -> None:
        """Opens the next block, unless it starts at or beyond the end."""
        size = self.shape.block
        start = self.first + len(self.blocks) * size
        if start >= self.end:
            return
        tokens = [self.known.get(n, self.shape.mask_id) for n in range(start, start + size)]
        block = Block(start, tokens, [PROMPT if n in self.known else MASKED for n in range(start, start + size)])
        if self.p.total_steps is not None:
            starts = range(self.first, self.end, size)
            masks = [sum(n not in self.known for n in range(at, at + size)) for at in starts]
            block.step_budget = divided(self.p.total_steps, masks)[len(self.blocks)]
        self.blocks.append(block)
        if not block.masked and all(b.status != ACTIVE for b in self.blocks[:-1]):
            block.status = TO_CACHE

    def is_eos(self, block: Block, i: int) -> bool:
        return (
            block.state[i] == UNMASKED
            and self.p.ends(block.tokens[i], self.shape.eos_ids)
            and block.start + i < self.end
        )

    def opening(self) -> None:
        """Opens blocks before a step (docs/research/decoding-rules.md#opening-blocks)."""
        active = [b for b in self.blocks if b.status == ACTIVE]
        if not active:
            opened = -1
            while opened < len(self.blocks) and all(b.status != ACTIVE for b in self.blocks):
                opened = len(self.blocks)
                self.open_next()
            return
        newest = active[-1]
        stability = newest.same_token_ratio if self.p.edits else 1.0
        eos = any(self.is_eos(b, i) for b in self.blocks if b.status != IN_CACHE for i in range(self.shape.block))
        if (
            newest.progress >= self.p.add_block_threshold
            and stability >= self.p.token_stability_threshold
            and len(active) < self.shape.buffer
            and not eos
        ):
            self.open_next()

    def must_advance(self, n: int) -> bool:
        if n == 0:  # the predecessor is absent or completely prompt
            return True
        before = self.blocks[n - 1]
        return before.status != ACTIVE or before.progress >= self.p.semi_complete_threshold

    def step(self) -> None:
        """Makes a step: opens blocks, decides, and applies (docs/research/decoding-rules.md#denoising-step)."""
        self.opening()
        logits, held = self.look(), self.held()
        plans = []
        for n, block in enumerate(self.blocks):
            if block.status == ACTIVE and block.free:
                first = block.start - self.shape.shift
                rows = shaped(
                    logits[first : first + self.shape.block], block.start, self.prompt, *held, self.p, self.shape
                )
                force = self.must_advance(n)
                plans.append((block, self.decide(block, rows, self.p, self.shape, force=force, step=self.nfe), force))
        for block in self.blocks:
            if block.status == TO_CACHE:
                block.status = IN_CACHE
        for block, decision, force in plans:
            apply(block, decision, self.shape.mask_id, force=force)
        self.nfe += bool(plans)
        for n, block in enumerate(self.blocks):
            done = block.ended if self.p.edits and block.free else not block.masked
            if block.status == ACTIVE and done and (n == 0 or self.blocks[n - 1].status != ACTIVE):
                block.status = TO_CACHE

    def held(self) -> tuple[list[int | None], list[bool]]:
        """Returns the token of each position of the answer, None if MASKED, and whether the position is UNMASKED."""
        answer = [self.known.get(n) for n in range(len(self.prompt), self.end)]
        filled = [False] * len(answer)
        for block in self.blocks:
            for i in block.filled:
                n = block.start + i - len(self.prompt)
                if 0 <= n < len(answer):
                    answer[n], filled[n] = block.tokens[i], True
        return answer, filled

    def look(self) -> np.ndarray:
        """Returns the logits of the sequence so far, float64 [n, vocab]."""
        return self.logits_of(self.sequence())

    def sequence(self) -> list[int]:
        return self.prompt[: self.first] + [t for b in self.blocks for t in b.tokens]

    def prefix(self, *, stable: bool) -> tuple[list[int], bool]:
        """Returns the run without masks from P, cut at E and before an EOS, and whether an EOS cut it."""
        out: list[int] = []
        for block in self.blocks:
            if stable and self.p.revises and block.status == ACTIVE:
                break
            for i in range(self.shape.block):
                if block.state[i] == MASKED or block.start + i >= self.end:
                    return out, False
                if self.is_eos(block, i):
                    return out, True
                if block.start + i >= len(self.prompt):
                    out.append(block.tokens[i])
        return out, False

    def answer(self) -> tuple[list[int], str | None]:
        """Returns the stable tokens and None, or the complete answer and its finish reason."""
        stable, eos = self.prefix(stable=True)
        if eos:
            return stable, "stop"
        if len(stable) == self.p.max_tokens:
            return stable, "length"
        return limited(stable, self.prefix(stable=False)[0], self.nfe, self.p)

    def run(self, max_steps: int) -> Result:
        for _ in range(max_steps):
            self.step()
            tokens, reason = self.answer()
            shown = [b for b in self.blocks if b.status != IN_CACHE]
            start = shown[0].start if shown else self.blocks[-1].start + self.shape.block
            masked = [b.start + i - start for b in shown for i in b.masked]
            ids = [t for b in shown for t in b.tokens]
            self.events.append(Event(start, ids, masked, tokens[self.sent :], self.nfe))
            self.sent = max(self.sent, len(tokens))
            if reason is not None:
                return Result(tokens, self.nfe, reason, self.events, self.sequence(), self.blocks)
        raise AssertionError(f"the request did not end within {max_steps} steps")


def decode(
    logits_of: LogitsOf, prompt: Sequence[int], params: Params, shape: Shape, pinned: Mapping[int, int] | None = None
) -> Result:
    """Decodes one request to its end. `pinned` has given tokens of the answer, by offset in the answer.

    Raises:
        AssertionError: The request takes more steps than its blocks may take
            (docs/research/decoding-rules.md#invariant-5-termination).
    """
    blocks = -(-(len(prompt) + params.max_tokens - shape.first(len(prompt))) // shape.block)
    per_block = params.max_steps_per_block + params.max_post_edit_steps + 1 + shape.block
    return _Decode(logits_of, prompt, params, shape, pinned or {}).run(blocks * per_block)
