"""Blocks that no unmasking algorithm fills: constrained decoding, and forced tokens of prompt scoring.

Constrained decoding is for structured output (docs/guide/structured-output.md). From the first masked position of a
block on, the best token that the grammar allows is accepted from the logits of the step, as long as its confidence is
above the threshold. The first token of a step is always accepted. Tokens that the grammar forces need no logits. All
positions after the first rejected token stay masked.

The grammar of a part of the output accepts no token after this part. If it fails, the step accepts the model's best
token at the first masked position, because some strategies sample a position in one step only.

All constrained blocks of a step advance together: one bitmask, one argmax and one host synchronization per position.
The bitmasks of the first position are computed, and its argmax is launched, while the device samples other blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from runtime.algorithms.base import TEMPERATURE
from runtime.algorithms.logits_ops import DEFAULT_LOGITS_OPS
from runtime.kernels.bitmask_argmax import mask_logits
from runtime.kernels.ops import select_kernels
from runtime.kernels.uniform_numbers import uniform_numbers_reference
from runtime.scheduling.step_plan import UNMASKED, BlockResults, DenoiseBlocks, GrammarBlock, Ints32, StateWrite
from runtime.worker.candidates import FullLogits
from runtime.worker.logits_processors import apply_to_rows


@dataclass
class GrammarWalk:
    """Progress of a constrained block within a step.

    Attributes:
        block: the block.
        first_row: row of its first masked position among the logits of the batch.
        accepted: tokens accepted in this step, from the first masked position on.
        forced: the first token was accepted below the threshold.
        stopped: a token was rejected.
        bitmasks: the allowed tokens at offsets where one of them was accepted; not at those of forced tokens.
    """

    block: GrammarBlock
    first_row: int
    accepted: list[int] = field(default_factory=list)
    forced: bool = False
    stopped: bool = False
    bitmasks: dict[int, Ints32] = field(default_factory=dict)

    @property
    def position(self) -> int:
        """Offset of the next position in the block."""
        return self.block.first_masked + len(self.accepted)

    @property
    def row(self) -> int:
        """Row of the next position among the logits of the batch."""
        return self.first_row + len(self.accepted)

    @property
    def num_left(self) -> int:
        """Number of tokens that the output may still have."""
        return self.block.num_left - len(self.accepted)

    @property
    def is_free(self) -> bool:
        """Whether the model chooses the first token, because the grammar of a part of the output failed."""
        return not self.accepted and self.block.constraint.partial and bool(self.block.constraint.error)

    @property
    def is_active(self) -> bool:
        if self.stopped or self.position >= self.block.size or self.num_left <= 0:
            return False
        return self.is_free or not self.block.constraint.has_ended

    def accept(self, token: int) -> bool:
        """Accepts the next token, or another one if the output could not end in time. Returns whether it is `token`.

        An end-of-sequence token fills the rest of the block.
        """
        constraint = self.block.constraint
        accepted = constraint.accept_token(token, self.num_left)
        self.accepted.append(accepted)
        if constraint.finished:
            self.accepted += [accepted] * (self.block.size - self.position)
        return accepted == token

    def accept_forced(self) -> None:
        """Accepts all tokens that the grammar forces next."""
        while self.is_active:
            tokens = self.block.constraint.forced_tokens()
            if not tokens:
                return
            for token in tokens:
                if not (self.is_active and self.accept(token)):
                    break

    def propose(self, token: int, confidence: float, bitmask: Ints32) -> None:
        """Accepts a token that `bitmask` allows, if it is the step's first or its confidence exceeds the threshold."""
        if self.accepted and not confidence > self.block.threshold:
            self.stopped = True
            return
        self.forced |= not confidence > self.block.threshold
        position = self.position
        if self.accept(token):
            self.bitmasks[position] = bitmask


class Choice(NamedTuple):
    """The next token of each block of `walks`.

    Attributes:
        bitmask: the allowed tokens, int32 [walks, ceil(vocab / 32)].
        best: the token and its probability among the allowed ones, float64 [2, walks].
    """

    walks: list[GrammarWalk]
    bitmask: Ints32
    best: torch.Tensor


class ConstrainedDecoding:
    """The constrained blocks of a step.

    Args:
        full_logits: of a forward that may still run.
    """

    def __init__(self, full_logits: FullLogits, blocks: DenoiseBlocks) -> None:
        self._full_logits, self._blocks = full_logits, blocks
        self._batches = list(_batches(blocks, 0 if full_logits.batch_invariant else full_logits.max_rows))
        self._first = self._begin(self._batches[0])  # only one, as logits of a batch take much memory

    def _begin(self, batch: list[GrammarWalk]) -> tuple[torch.Tensor, Choice | None]:
        """Returns the logits [rows, vocab] of a batch, and its first choice."""
        blocks = self._blocks
        block = np.concatenate([np.full(w.block.size - w.position, w.block.block) for w in batch])
        at = np.concatenate([np.arange(w.position, w.block.size) for w in batch])
        logits = self._full_logits.rows(blocks.rows[block] + at)
        if blocks.logits_processors is not None:
            apply_to_rows(logits, blocks.logits_processors, block, at)
        for walk in batch:
            walk.accept_forced()
        return logits, _choose(logits, batch, blocks)

    def finish(self, results: BlockResults) -> tuple[StateWrite, ...]:
        """Writes the accepted tokens to `results`, which has these blocks unchanged, and returns them."""
        for n, batch in enumerate(self._batches):
            logits, choice = self._begin(batch) if n else self._first
            while choice is not None:
                for walk, allowed, token, confidence in zip(
                    choice.walks, choice.bitmask, *choice.best.tolist(), strict=True
                ):
                    walk.propose(int(token), confidence, allowed)
                    walk.accept_forced()
                choice = _choose(logits, choice.walks, self._blocks)
        walks = [walk for batch in self._batches for walk in batch]
        for walk in walks:
            _write(walk, results)
            if self._blocks.processed_logprobs is not None and self._blocks.processed_logprobs[walk.block.block]:
                i, first = walk.block.block, walk.block.first_masked
                results.allowed.update({(i, at): walk.bitmasks.get(at) for at in range(first, walk.position)})
        return tuple(_unmasked(self._blocks, w.block.block, w.block.first_masked, w.accepted) for w in walks)


def _batches(blocks: DenoiseBlocks, max_rows: int) -> Iterator[list[GrammarWalk]]:
    """Yields the constrained blocks in batches of at most `max_rows` rows of logits, or of one block."""
    batch: list[GrammarWalk] = []
    rows = 0
    for block in blocks.grammar_blocks:
        count = block.size - block.first_masked
        if batch and rows + count > max_rows:
            yield batch
            batch, rows = [], 0
        batch.append(GrammarWalk(block, rows))
        rows += count
    if batch:
        yield batch


def _choose(logits: torch.Tensor, walks: Sequence[GrammarWalk], blocks: DenoiseBlocks) -> Choice | None:
    """Launches the choice of the next token of each active block. None: none is active."""
    active = [walk for walk in walks if walk.is_active]
    if not active:
        return None
    mask_size = -(-logits.shape[1] // 32)
    bitmask = np.zeros((len(active), max(mask_size, active[0].block.constraint.facts.mask_len)), dtype=np.int32)
    for walk, row in zip(active, bitmask, strict=True):
        walk.block.constraint.fill_bitmask(row[: walk.block.constraint.facts.mask_len])
    remaining = [i for i, walk in enumerate(active) if walk.is_free or not walk.block.constraint.error]
    if not remaining:
        return None
    active, bitmask = [active[i] for i in remaining], np.ascontiguousarray(bitmask[remaining, :mask_size])
    return Choice(active, bitmask, _sample_allowed(logits, bitmask, active, blocks))


def _sample_allowed(
    logits: torch.Tensor, bitmask: np.ndarray, active: Sequence[GrammarWalk], blocks: DenoiseBlocks
) -> torch.Tensor:
    """Returns `Choice.best` of active blocks.

    The token is the argmax, or a sample for requests with a temperature.

    Args:
        logits: [rows, vocab].
        bitmask: int32 [blocks, ceil(vocab / 32)], contiguous, one bit per token.
    """
    device, params = logits.device, blocks.sampling_params
    rows = _to_device(np.array([walk.row for walk in active]), device)
    packed = _to_device(bitmask, device)
    best = select_kernels(device, logits.dtype).bitmask_argmax(logits, rows, packed)
    random = [i for i, w in enumerate(active) if params is not None and params[w.block.block, TEMPERATURE] > 0]
    if params is not None and random:
        assert blocks.draws is not None
        block, position = torch.tensor([(active[i].block.block, active[i].position) for i in random]).unbind(1)
        uniform = uniform_numbers_reference(torch.from_numpy(blocks.draws), block, position).to(device)
        own = torch.from_numpy(params)[block].to(device)
        probs = DEFAULT_LOGITS_OPS.filtered_probs(mask_logits(logits, rows[random], packed[random]), own)
        picked = DEFAULT_LOGITS_OPS.multinomial(probs, uniform)
        best[:, random] = torch.stack([picked.token.double(), picked.confidence.double()])
    return best


def _to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Transfers an array without waiting for earlier launches, which a transfer from pageable memory may do."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _write(walk: GrammarWalk, results: BlockResults) -> None:
    """Unmasks the accepted tokens of a block."""
    i, first, tokens = walk.block.block, walk.block.first_masked, walk.accepted
    end = first + len(tokens)
    results.tokens[i, first:end] = tokens
    results.state[i, first:end] = UNMASKED
    results.masks[i] -= len(tokens)
    results.num_updated[i] += len(tokens)
    results.first_masked[i] = end if results.masks[i] else results.tokens.shape[1]
    results.finished[i] = not results.masks[i]
    results.forced[i] = walk.forced
    eos = walk.block.constraint.facts.eos
    first_eos = next((n for n, token in enumerate(tokens, first) if token in eos), None)
    if first_eos is not None:
        results.first_eos[i] = first_eos


def forced_writes(blocks: DenoiseBlocks) -> tuple[StateWrite, ...]:
    """Returns the forced tokens of a step. The algorithms leave these blocks unchanged."""
    return tuple(_unmasked(blocks, *each) for each in blocks.forced_tokens)


def _unmasked(blocks: DenoiseBlocks, i: int, first: int, tokens: Sequence[int]) -> StateWrite:
    """Returns tokens of block `i` from offset `first` on, which are UNMASKED."""
    state = np.full(len(tokens), UNMASKED, dtype=np.int8)
    return StateWrite(int(blocks.req_slot[i]), int(blocks.start[i]) + first, np.array(tokens, dtype=np.int64), state)
