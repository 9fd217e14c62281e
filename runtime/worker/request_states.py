"""Tokens and states of the positions of all running requests, on the device of the model.

A forward reads its tokens here, and the sampling of a block reads and writes its tokens and states. So steps need only
the numbers of slots and positions. The host writes what no sampling does: requests that begin to run, noise of new
canvases, and tokens of grammars.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from runtime.scheduling.step_plan import FIXED, REMASKED, STATE_BITS, Ints, StateWrite
from runtime.worker.host_buffers import Arrays, PinnedBuffer


class BlockContent(NamedTuple):
    """Content of `n` blocks of at most `B` positions. Positions behind a smaller block are FIXED."""

    entry: torch.Tensor  # int64 [n, B], where each position is stored; 0 behind a block
    tokens: torch.Tensor  # int64 [n, B]
    state: torch.Tensor  # int8 [n, B]
    remasked: torch.Tensor  # bool [n, B], positions that were masked again in an earlier step

    def inputs(self) -> dict[str, torch.Tensor]:
        """Returns the content by the names that sampling reads."""
        return {"block_tokens": self.tokens, "block_state": self.state, "remasked": self.remasked}


class RequestStates:
    """One-dimensional tables of tokens and states. Each slot has `max_len` consecutive entries.

    Entry 0 is for padding: token 0 in state FIXED. Entries after the slots hold tokens of forwards whose ids are not
    those of a request, such as ids of an earlier step.

    Args:
        max_len: maximum number of positions of a request.
        num_staged: number of entries after the slots.

    Attributes:
        tokens: int32 [entries].
        states: int8 [entries]: FIXED, MASKED or UNMASKED, plus REMASKED.
    """

    def __init__(self, num_slots: int, max_len: int, device: torch.device, *, num_staged: int = 0) -> None:
        self.max_len = max_len
        self.first_staged = 1 + num_slots * max_len
        self.tokens = torch.zeros(self.first_staged + num_staged, dtype=torch.int32, device=device)
        self.states = torch.zeros(self.first_staged, dtype=torch.int8, device=device)

    @property
    def nbytes(self) -> int:
        return self.tokens.nbytes + self.states.nbytes

    def entries(self, slots: Ints | int, positions: Ints) -> Ints:
        """Returns the entries of positions of requests, int64 [n]."""
        return 1 + slots * self.max_len + positions

    def write(self, writes: Sequence[StateWrite], buffer: PinnedBuffer) -> None:
        """Writes what the host has changed.

        Args:
            buffer: transfers the content.
        """
        if not writes:
            return
        spans = [self.entries(each.slot, np.arange(each.start, each.start + len(each.tokens))) for each in writes]
        arrays: Arrays = {
            "entry": np.concatenate(spans),
            "tokens": np.concatenate([each.tokens for each in writes]).astype(np.int32),
            "states": np.concatenate([each.states for each in writes]),
        }
        found = buffer.to_device(arrays)
        self.tokens[found["entry"]], self.states[found["entry"]] = found["tokens"], found["states"]

    def stage(self, tokens: Ints, buffer: PinnedBuffer) -> Ints:
        """Stores the tokens of a forward, and returns their entries. The next call overwrites them."""
        end = self.first_staged + len(tokens)
        self.tokens[self.first_staged : end] = buffer.to_device({"tokens": tokens})["tokens"]
        return np.arange(self.first_staged, end)

    def gather(self, first: torch.Tensor, size: torch.Tensor, width: int) -> BlockContent:
        """Returns the content of blocks.

        Args:
            first: int64 [n], entry of the first position.
            size: int64 [n], number of positions.
            width: positions per row of the result.
        """
        offset = torch.arange(width, device=first.device)
        entry = torch.where(offset < size[:, None], first[:, None] + offset, 0)
        states = self.states[entry]
        return BlockContent(entry, self.tokens[entry].long(), states & STATE_BITS, (states & REMASKED) != 0)

    def scatter(self, before: BlockContent, tokens: torch.Tensor, state: torch.Tensor, remasked: torch.Tensor) -> None:
        """Writes blocks after a step. FIXED positions keep their tokens, whatever the algorithm returns for them.

        Otherwise the candidate of a padding row, which may be no id, would become the token of the padding.

        Args:
            before: the blocks before the step.
            tokens, state: int64 and int8 [n, B].
            remasked: bool [n, B], positions that this step has masked again.
        """
        self.tokens[before.entry] = torch.where(before.state == FIXED, before.tokens, tokens).int()
        self.states[before.entry] = torch.where(before.remasked | remasked, state + REMASKED, state)
