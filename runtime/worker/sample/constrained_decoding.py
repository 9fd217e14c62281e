"""The walk of requests whose answers keep to a grammar (docs/server.md, Structured output).

From a block's first masked position on, the best token that the grammar allows is taken from this step's logits as long
as it is confident enough; the first always, and what the grammar forces without a look. What comes after the first that
is not stays masked. All walks of a step go side by side: each position is one mask, one choice and one answer for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from runtime.algorithms import sampling
from runtime.algorithms.base import MIN_P, TEMPERATURE, TOP_K, TOP_P
from runtime.algorithms.logits_ops import DEFAULT_LOGITS_OPS
from runtime.engine.request import UNMASKED
from runtime.engine.step_plan import BlockResults, DenoiseBlocks, GrammarBlock
from runtime.worker.sample.full_logits import FullLogits
from runtime.worker.sample.logits_processors import apply_logits_processors, logits_processor_arrays


@dataclass
class Walking:
    """A walk on its way: `at` is the offset it has come to, `taken` what it took from `walk.first` on."""

    walk: GrammarBlock
    size: int  # positions of the block
    first_row: int  # of its first position's logits, among those of its batch
    taken: list[int] = field(default_factory=list)
    bold: bool = False  # its first token was taken though it was not confident
    stopped: bool = False

    @property
    def at(self) -> int:
        return self.walk.first_masked + len(self.taken)

    @property
    def row(self) -> int:
        return self.first_row + len(self.taken)

    @property
    def goes_on(self) -> bool:
        return not self.stopped and self.at < self.size and not self.walk.constraint.error

    def take(self, token: int) -> None:
        """A token that comes next; behind an end of sequence the block is full of them."""
        constraint = self.walk.constraint
        constraint.accept_token(token)
        self.taken.append(token)
        if constraint.finished:
            self.taken += [token] * (self.size - self.at)

    def take_forced(self) -> None:
        while self.goes_on:
            forced = self.walk.constraint.forced_tokens()
            if not forced:
                return
            for token in forced[: self.size - self.at]:
                self.take(token)

    def offer(self, token: int, conf: float) -> None:
        """The best allowed one."""
        if self.taken and not conf > self.walk.threshold:
            self.stopped = True
            return
        self.bold |= not conf > self.walk.threshold
        self.take(token)


@torch.inference_mode()
def walk(looking: FullLogits, plan: DenoiseBlocks, results: BlockResults) -> None:
    """Take the step's walks, and write what they took into `results`, where their blocks are as they were."""
    for batch in _batches(plan, 0 if looking.batch_invariant else looking.max_rows):
        rows = np.concatenate([plan.rows[w.walk.block] + np.arange(w.at, w.size) for w in batch])
        logits = looking.rows(rows)
        if plan.logits_processors is not None:
            block = np.concatenate([np.full(w.size - w.at, w.walk.block) for w in batch])
            at = np.concatenate([np.arange(w.at, w.size) for w in batch])
            given = {
                name: _on(array, logits) for name, array in logits_processor_arrays(plan.logits_processors).items()
            }
            apply_logits_processors(logits, given, _on(block, logits), _on(at, logits), DEFAULT_LOGITS_OPS)
        _go(batch, logits, plan)
        for walking in batch:
            _write(walking, results)


def _on(array: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(array).to(like.device)


def _batches(plan: DenoiseBlocks, most: int) -> Iterator[list[Walking]]:
    """Walks whose logits are made at once, of `most` rows, or one walk."""
    batch: list[Walking] = []
    rows = 0
    for each in plan.grammar_blocks:
        count = each.size - each.first_masked
        if batch and rows + count > most:
            yield batch
            batch, rows = [], 0
        batch.append(Walking(each, each.size, rows))
        rows += count
    if batch:
        yield batch


def _go(batch: Sequence[Walking], logits: torch.Tensor, plan: DenoiseBlocks) -> None:
    words = -(-logits.shape[1] // 32)
    for walking in batch:
        walking.take_forced()
    going = [walking for walking in batch if walking.goes_on]
    while going:
        allowed = np.zeros((len(going), max(words, going[0].walk.constraint.facts.mask_len)), dtype=np.int32)
        for walking, row in zip(going, allowed, strict=True):
            walking.walk.constraint.fill_bitmask(row[: walking.walk.constraint.facts.mask_len])
        going, allowed = _alive(going, allowed[:, :words])
        if not going:
            return
        rows = torch.tensor([walking.row for walking in going], device=logits.device)
        mine = logits[rows].masked_fill(~_bits(allowed, logits), float("-inf"))
        found = _choose(mine, going, plan)
        told = torch.stack([found.token.double(), found.confidence.double()]).tolist()
        for walking, token, conf in zip(going, *told, strict=True):
            walking.offer(int(token), conf)
            walking.take_forced()
        going = [walking for walking in going if walking.goes_on]


def _alive(going: list[Walking], allowed: np.ndarray) -> tuple[list[Walking], np.ndarray]:
    """Without those that have just failed."""
    kept = [i for i, walking in enumerate(going) if not walking.walk.constraint.error]
    return [going[i] for i in kept], allowed[kept]


def _bits(allowed: np.ndarray, logits: torch.Tensor) -> torch.Tensor:
    """bool [n, vocab] of int32 [n, words], a bit a token."""
    words = torch.from_numpy(np.ascontiguousarray(allowed)).to(logits.device)
    shifts = torch.arange(32, dtype=torch.int32, device=logits.device)
    bits = (words[:, :, None] >> shifts) & 1
    return bits.flatten(1)[:, : logits.shape[1]].bool()


def _choose(logits: torch.Tensor, going: Sequence[Walking], plan: DenoiseBlocks) -> sampling.Candidate:
    """The likeliest allowed token of each row, or the drawn one of those that draw; and its probability among the
    allowed."""
    best = sampling.greedy(logits)
    drawing = plan.sampling
    if drawing is None:
        return best
    limits = torch.from_numpy(drawing.limits[[w.walk.block for w in going]]).to(logits.device)
    draws = [i for i, w in enumerate(going) if drawing.limits[w.walk.block, TEMPERATURE] > 0]
    if not draws:
        return best
    mine = limits[draws]
    probs = sampling.filtered_probs(
        logits[draws], temperature=mine[:, TEMPERATURE], top_k=mine[:, TOP_K].long(), top_p=mine[:, TOP_P],
        min_p=mine[:, MIN_P],
    )  # fmt: skip
    uniform = torch.tensor([drawing.uniform[going[i].walk.block, going[i].at] for i in draws], dtype=torch.float64)
    picked = sampling.multinomial(probs, uniform.to(logits.device))
    best.token[draws], best.confidence[draws] = picked.token, picked.confidence
    return best


def _write(walking: Walking, results: BlockResults) -> None:
    i, first, at, taken = walking.walk.block, walking.walk.first_masked, walking.at, walking.taken
    results.tokens[i, first:at] = taken
    results.state[i, first:at] = UNMASKED
    results.masks[i] -= len(taken)
    results.num_updated[i] += len(taken)
    results.first_masked[i] = at if results.masks[i] else results.tokens.shape[1]
    results.forced[i] = walking.bold
    results.finished[i] = not results.masks[i]
    eos = walking.walk.constraint.facts.eos
    where = next((n for n, token in enumerate(taken, first) if token in eos), None)
    if where is not None:
        results.first_eos[i] = where
