"""A naive decoder of `full`, written from docs/research/decoding-rules.md#strategy-full, without code of the engine.

It decodes one request. The logits of a row depend on when the K/V of each position was written. So the model has a
memory: a forward of some rows writes their K/V and reads the last written K/V of all positions. Positions are decided
in plain Python (`decide`).

Details of the rules that oracle and engine interpret in the same way, in addition to those of `tests.oracle.decode`:

 1. A block all of whose positions are given takes no forward and no step, unless it is the last. The last one has one
    forward that samples nothing. This forward ends the answer and has a denoise event.
 2. With a logits shift and `prefix` or `dual`, the forward of the complete canvas unmasks only the first position of
    the block, whatever its confidence. If that position was given, the forward samples nothing and is no step.
 3. In this case the other positions are a block of their own from then on. If the first position was sampled, their
    quotas use `steps` - 1, but at least 1. `max_steps_per_block` counts their steps, and only these positions are
    remasked or edited. There may be no other positions.
 4. A denoise event shows the block of its step. A forward that samples nothing has an event only if the answer ends
    with it.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from tests.oracle.block import MASKED, PROMPT, UNMASKED, Block, Params, Shape, apply, choose_alone, decide
from tests.oracle.decode import Event, Result, divided, limited
from tests.oracle.logits_processors import shaped
from tests.oracle.seeded import Memory


class _Full:
    def __init__(
        self, memory: Memory, prompt: Sequence[int], p: Params, shape: Shape, pinned: Mapping[int, int]
    ) -> None:
        self.memory, self.p, self.shape, self.shift = memory, p, shape, shape.shift
        self.start = len(prompt)
        self.end = self.start + p.max_tokens
        self.ids = [*prompt, *(pinned.get(n, shape.mask_id) for n in range(p.max_tokens))]
        self.state = [PROMPT] * self.start + [PROMPT if n in pinned else MASKED for n in range(p.max_tokens)]
        self.nfe = self.sent = 0
        self.last_answer: list[int] = []  # the answer as of the last event
        self.events: list[Event] = []

    def run(self) -> Result:
        bounds = [(n, min(n + self.p.block_length, self.end)) for n in range(self.start, self.end, self.p.block_length)]
        masks = [self.state[start:stop].count(MASKED) for start, stop in bounds]
        total = self.p.total_steps
        shared = [self.p.steps] * len(masks) if total is None else divided(total, masks)
        for (start, stop), steps in zip(bounds, shared, strict=True):
            if MASKED not in self.state[start:stop] and stop < self.end:
                continue
            reason = self.denoise(start, stop, steps)
            if reason is not None:
                return Result(self.last_answer, self.nfe, reason, self.events, self.ids, [])
        raise AssertionError("the last block ends the answer")

    def denoise(self, start: int, stop: int, steps: int) -> str | None:
        """Denoises one block to its end. Returns the finish reason if the answer ends, else None."""
        p, cache = self.p, self.p.cache
        logits = self.forward(0, self.end)
        block = Block(start, self.ids[start:stop], self.state[start:stop], step_budget=steps)
        if self.shift and cache in ("prefix", "dual"):
            block = Block(start + 1, self.ids[start + 1 : stop], self.state[start + 1 : stop], step_budget=steps)
            sampled = self.state[start] == MASKED
            if sampled:
                row = self.shaped(logits[start - 1][None], start)[0]
                self.ids[start] = choose_alone(row, p, self.shape, position=start, step=self.nfe)
                self.state[start] = UNMASKED
                block.step_budget = max(steps - 1, 1)
        else:
            sampled = bool(block.masked)
            if sampled:
                self.step(block, logits)
        while True:
            self.nfe += sampled
            complete = block.ended if p.algorithm == "edit" and block.free else not block.masked
            tokens, reason = self.answer(start, stop, complete=complete)
            if sampled or reason is not None:
                masked = [i for i in range(stop - start) if self.state[start + i] == MASKED]
                self.events.append(Event(start, self.ids[start:stop], masked, tokens[self.sent :], self.nfe))
                self.sent = len(tokens)
                self.last_answer = tokens
            if complete or reason is not None:
                return reason
            first, last = {
                "none": (0, self.end),
                "prefix": (start, self.end),
                "dual": (start, stop),
                "vicinity": (max(start - 16, 0), min(stop + 16, self.end)),
            }[cache]
            self.step(block, self.forward(first, last))
            sampled = True

    def forward(self, first: int, last: int) -> dict[int, np.ndarray]:
        rows = self.memory.forward(first, self.ids[first:last], [self.end] * (last - first))
        return dict(enumerate(rows, first))

    def step(self, block: Block, logits: dict[int, np.ndarray]) -> None:
        """Makes one step of the algorithm. Positions that are not masked and cannot change need no row in `logits`."""
        nothing = np.zeros_like(next(iter(logits.values())))
        rows = [logits.get(block.start + i - self.shift, nothing) for i in range(len(block.tokens))]
        decision = decide(
            block, self.shaped(np.stack(rows), block.start), self.p, self.shape, force=True, step=self.nfe
        )
        apply(block, decision, self.shape.mask_id, force=True)
        here = slice(block.start, block.start + len(block.tokens))
        self.ids[here], self.state[here] = block.tokens, block.state

    def shaped(self, rows: np.ndarray, first: int) -> np.ndarray:
        here = slice(self.start, self.end)
        held = [None if s == MASKED else t for t, s in zip(self.ids[here], self.state[here], strict=True)]
        filled = [s == UNMASKED for s in self.state[here]]
        return shaped(rows, first, self.ids[: self.start], held, filled, self.p, self.shape)

    def prefix(self, last: int) -> tuple[list[int], bool]:
        """Returns the run without masks from P below `last`, cut before an EOS, and whether an EOS cut it."""
        out: list[int] = []
        for n in range(self.start, last):
            if self.state[n] == MASKED:
                break
            if self.state[n] == UNMASKED and self.p.ends(self.ids[n], self.shape.eos_ids):
                return out, True
            out.append(self.ids[n])
        return out, False

    def answer(self, start: int, stop: int, *, complete: bool) -> tuple[list[int], str | None]:
        """Returns the stable tokens and None, or the complete answer and its finish reason."""
        p = self.p
        stable, eos = self.prefix(start if p.revises and not complete else stop)
        if eos:
            return stable, "stop"
        if len(stable) == p.max_tokens:
            return stable, "length"
        return limited(stable, self.prefix(stop)[0], self.nfe, p)


def decode_full(
    memory: Memory, prompt: Sequence[int], params: Params, shape: Shape, pinned: Mapping[int, int] | None = None,
) -> Result:  # fmt: skip
    """Decodes one request to its end. `memory` must be empty."""
    return _Full(memory, prompt, params, shape, pinned or {}).run()
