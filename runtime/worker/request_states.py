"""Tokens, states and pages of all running requests, on the device of the model.

A forward reads its tokens and pages here, and the sampling of a block reads and writes its tokens and states. So steps
need only the numbers of slots and positions. The host writes what no sampling does: requests that begin to run, pages,
noise of first canvases, forced tokens, and tokens of grammars.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from runtime.errors import ConfigError
from runtime.kernels.segments import FIRST_TOKEN, first_rows
from runtime.scheduling.step_plan import FIXED, REMASKED, STATE_BITS, Ints, Ints32, PageWrites, StateWrite, StepPlan
from runtime.worker.host_buffers import Arrays, PinnedBuffer

CHECKSUM_ENTRIES = 1 << 20  # of the tables at a time, which bounds the memory of a checksum
MULTIPLIER = -7046029254386353131  # odd, 2**64 divided by the golden ratio: spreads the bits of indices


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
    """Tables of tokens and states, where each slot has `max_len` consecutive entries, and page tables.

    Entry 0 is for padding: token 0 in state FIXED. Entries after the slots hold tokens of forwards whose ids are not
    those of a request, such as ids of an earlier step.

    Args:
        max_len, max_pages: maximum number of positions and pages of a request.
        num_staged: number of entries after the slots.

    Attributes:
        tokens: int32 [entries].
        states: int8 [entries]: FIXED, MASKED or UNMASKED, plus REMASKED.
        pages: int32 [slots, max_pages]. Entries after the last page of a request are any valid page.
    """

    def __init__(
        self, num_slots: int, max_len: int, device: torch.device, *, max_pages: int = 0, num_staged: int = 0
    ) -> None:
        self.max_len = max_len
        self.first_staged = 1 + num_slots * max_len
        if self.first_staged + num_staged >= 2**31:
            raise ConfigError(
                f"--max-num-reqs {num_slots}: the tokens of so many requests of {max_len} positions have no 32-bit "
                "index; lower it or --max-model-len"
            )
        self.tokens = torch.zeros(self.first_staged + num_staged, dtype=torch.int32, device=device)
        self.states = torch.zeros(self.first_staged, dtype=torch.int8, device=device)
        self.pages = torch.zeros(num_slots, max_pages, dtype=torch.int32, device=device)

    @property
    def nbytes(self) -> int:
        return self.tokens.nbytes + self.states.nbytes + self.pages.nbytes

    def entries(self, slots: Ints | int, positions: Ints) -> Ints:
        """Returns the entries of positions of requests, int64 [n]."""
        return 1 + slots * self.max_len + positions

    def write_pages(self, writes: PageWrites | None, buffer: PinnedBuffer) -> None:
        """Writes pages that the host has allocated.

        Args:
            buffer: transfers them.
        """
        if writes is not None:
            entry = writes.slots.astype(np.int64) * self.pages.shape[1] + writes.indices
            changed = buffer.to_device({"entry": entry, "pages": writes.pages})
            self.pages.view(-1)[changed["entry"]] = changed["pages"]

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

    def stage(self, plan: StepPlan, buffer: PinnedBuffer) -> Ints32:
        """Stores the tokens of a plan. Returns its segments, which read them there. The next call overwrites them."""
        assert plan.tokens is not None
        end = self.first_staged + len(plan.tokens)
        self.tokens[self.first_staged : end] = buffer.to_device({"tokens": plan.tokens})["tokens"]
        segments = plan.segments.copy()
        segments[:, FIRST_TOKEN] = self.first_staged + first_rows(segments)
        return segments

    def checksums(self) -> torch.Tensor:
        """Returns a checksum of the tokens, states and pages of each slot, int64 [slots].

        Sums of integers are exact, in any order. Each entry has an odd factor of its own, so one that differs changes
        the sum, and two that are exchanged nearly always do.
        """
        factors = MULTIPLIER * torch.arange(self.max_len + self.pages.shape[1], device=self.tokens.device)
        factors = factors ^ (factors >> 32) | 1
        tables = [table.view(-1, self.max_len) for table in (self.tokens[1 : self.first_staged], self.states[1:])]
        slots = max(CHECKSUM_ENTRIES // len(factors), 1)
        parts = zip(*(torch.split(table, slots) for table in (*tables, self.pages)), strict=True)
        return torch.cat([(torch.cat([t.long() << 3 | s, p], 1) * factors).sum(1) for t, s, p in parts])

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
