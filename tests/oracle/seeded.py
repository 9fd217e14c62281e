"""A naive decoder of `fast_dllm_v2` and `nemotron_diffusion` in plain Python.

It is written from docs/research/decoding-rules.md#strategy-fast_dllm_v2 and
docs/research/decoding-rules.md#strategy-nemotron_diffusion, without code of the engine. It decodes one request and
forwards everything again in each step.

A REFINE step also reads positions that it does not forward. For them, an explicit memory has what each position was
last forwarded with. A FULL step begins with an empty memory.

A seed is the first token of a block, which is sampled from the row before it. Details that the rules leave open, in
addition to those of `tests.oracle.decode`:

 1. A position whose row is not forwarded is not decided on. So REFINE does not mask the first position of a sub-block
    again.
 2. A sub-block without masks does not change any more, and the next one is decoded. With remasking, only finished
    sub-blocks and seeds are stable text.
 3. Each seed has a denoise event, as a step has.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from tests.oracle.block import MASKED, PROMPT, UNMASKED, Block, Params, Shape, apply, choose_alone, decide
from tests.oracle.decode import Event, Result, divided, limited
from tests.oracle.logits_processors import shaped
from tests.oracle.masks import block_end, prefix_causal_ends


class Memory(Protocol):
    """A model with a memory of what each position was last forwarded with."""

    def forward(self, first: int, ids: Sequence[int], ends: Sequence[int]) -> np.ndarray:
        """Returns logits, float64 [len(ids), vocab], of the positions from `first` on.

        Each position attends to the positions below its entry of `ends`.
        """
        ...


class _Decode:
    def __init__(
        self, fresh: Callable[[], Memory], prompt: Sequence[int], p: Params, shape: Shape, pinned: Mapping[int, int]
    ) -> None:
        self.fresh, self.prompt_len, self.p, self.shape = fresh, len(prompt), p, shape
        self.end = len(prompt) + p.max_tokens
        self.first = self.start = self.opened = shape.first(len(prompt))
        self.part = p.sub_block_size if shape.shift else shape.block
        known = dict(enumerate(prompt)) | {len(prompt) + n: token for n, token in pinned.items()}
        size = self.first + -(-(self.end - self.first) // shape.block) * shape.block
        self.tokens = [known.get(a, shape.mask_id) for a in range(size)]
        self.state = [PROMPT if a in known else MASKED for a in range(size)]
        self.parts: list[Block] = []
        self.memory = fresh()
        self.nfe = self.sent = 0
        self.events: list[Event] = []

    def ends(self, first: int, last: int) -> list[int]:
        """Returns the `visible_end` of the positions [first, last) in a sequence that ends with the open block."""
        if self.shape.from_prompt:
            return prefix_causal_ends(self.opened, self.start)[first:last]
        return [block_end(a, self.shape.block) for a in range(first, last)]

    def seed(self) -> None:
        """Samples the first token of the block that begins at `start` from the logits of the row before it."""
        logits = self.fresh().forward(0, self.tokens[: self.start], self.ends(0, self.start))
        token = choose_alone(
            self.shaped(logits[-1:], self.start)[0], self.p, self.shape, position=self.start, step=self.nfe
        )
        self.tokens[self.start], self.state[self.start] = token, UNMASKED

    def open(self) -> None:
        self.opened = self.start + self.shape.block
        steps = self.shared()
        self.parts = []
        for at in range(self.start, self.opened, self.part):
            here = slice(at, at + self.part)
            state = [PROMPT if a == self.start else s for a, s in enumerate(self.state[here], at)]
            self.parts.append(Block(at, self.tokens[here], state, step_budget=steps.get(at)))

    def shared(self) -> dict[int, int]:
        """Returns the steps of each sub-block, by its start, if the request has `total_steps`.

        Sub-blocks without a mask before the end are left out. The position of a seed is no mask.
        """
        if self.p.total_steps is None:
            return {}
        masks: dict[int, list[int]] = {}
        for a in range(self.first, len(self.tokens)):
            if self.state[a] != PROMPT and (a - self.first) % self.shape.block:
                masks.setdefault(self.first + (a - self.first) // self.part * self.part, []).append(a)
        masks = {at: own for at, own in masks.items() if own[0] < self.end}
        return dict(zip(masks, divided(self.p.total_steps, [len(own) for own in masks.values()]), strict=True))

    def step(self, part: Block, *, first_step: bool) -> None:
        """Makes a FULL or REFINE step of a sub-block of the open block."""
        if first_step or not self.p.block_cache or part.state[0] == MASKED:
            first, last, self.memory = 0, self.opened, self.fresh()
        else:
            first, last = part.start, part.start + self.part
        logits = self.memory.forward(first, self.tokens[first:last], self.ends(first, last))
        seen = copy.copy(part)
        rows = np.zeros((self.part, logits.shape[1]))
        for i in range(self.part):
            row = part.start + i - self.shape.shift
            if row >= first:
                rows[i] = logits[row - first]
            else:
                assert part.state[i] != MASKED
                seen.remasked = part.remasked | {i}
        shape = replace(self.shape, block=self.part)
        decision = decide(seen, self.shaped(rows, part.start), self.p, shape, force=True, step=self.nfe)
        apply(part, decision, self.shape.mask_id, force=True)
        self.tokens[part.start : part.start + self.part] = part.tokens
        for i, state in enumerate(part.state):
            if part.start + i != self.start:
                self.state[part.start + i] = state
        self.nfe += 1

    def shaped(self, rows: np.ndarray, first: int) -> np.ndarray:
        here = slice(self.prompt_len, self.end)
        held = [None if s == MASKED else t for t, s in zip(self.tokens[here], self.state[here], strict=True)]
        filled = [s == UNMASKED for s in self.state[here]]
        return shaped(rows, first, self.tokens[: self.prompt_len], held, filled, self.p, self.shape)

    def current(self) -> Block | None:
        return next((part for part in self.parts if part.masked), None)

    def is_eos(self, a: int) -> bool:
        known = self.state[a] == UNMASKED and self.p.ends(self.tokens[a], self.shape.eos_ids)
        return known and a < self.end

    def prefix(self, limit: int) -> tuple[list[int], bool]:
        out: list[int] = []
        for a in range(self.prompt_len, min(limit, self.end)):
            if self.state[a] == MASKED:
                break
            if self.is_eos(a):
                return out, True
            out.append(self.tokens[a])
        return out, False

    def answer(self) -> tuple[list[int], str | None]:
        current = self.current()
        final = self.opened if current is None else current.start + (current.start == self.start)
        stable, eos = self.prefix(final if self.p.revises else self.opened)
        if eos:
            return stable, "stop"
        if len(stable) == self.p.max_tokens:
            return stable, "length"
        return limited(stable, self.prefix(self.opened)[0], self.nfe, self.p)

    def step_event(self) -> Result | None:
        tokens, reason = self.answer()
        shown = range(self.start, self.opened)
        masked = [a - self.start for a in shown if self.state[a] == MASKED]
        ids = self.tokens[self.start : self.opened]
        self.events.append(Event(self.start, ids, masked, tokens[self.sent :], self.nfe))
        self.sent = max(self.sent, len(tokens))
        return None if reason is None else Result(tokens, self.nfe, reason, self.events, list(self.tokens), self.parts)

    def run(self) -> Result:
        while self.start < self.end:
            if self.state[self.start] == MASKED:
                self.seed()
                self.open()
                if result := self.step_event():
                    return result
            else:
                self.open()
            first_step, steps = True, 0
            while part := self.current():
                self.step(part, first_step=first_step)
                first_step, steps = False, steps + 1
                assert steps <= self.shape.block * (self.p.max_steps_per_block + 2), "the block does not end"
                if result := self.step_event():
                    return result
            self.start = self.opened
        result = self.step_event()
        assert result is not None
        return result


def decode_seeded(
    fresh: Callable[[], Memory], prompt: Sequence[int], params: Params, shape: Shape,
    pinned: Mapping[int, int] | None = None,
) -> Result:  # fmt: skip
    """Decodes one request to its end, see `tests.oracle.decode.decode`. `fresh` returns an empty memory.

    `shape.shift` is 1 for fast_dllm_v2, else 0. `params.sub_block_size` applies to fast_dllm_v2 only.
    """
    return _Decode(fresh, prompt, params, shape, pinned or {}).run()
