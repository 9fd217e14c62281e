"""Tests of the tables of tokens and states. `tests/engine/harness.py` compares them with all requests in each step."""

import numpy as np
import pytest
import torch

from runtime.kernels.segments import FIRST_TOKEN, Segment
from runtime.scheduling.step_plan import (
    FIXED,
    MASKED,
    REMASKED,
    UNMASKED,
    PageWrites,
    StateWrite,
    StepPlan,
)
from runtime.worker import request_states
from runtime.worker.host_buffers import PinnedBuffer
from runtime.worker.request_states import BlockContent, RequestStates

MASK = 50
BUFFER = PinnedBuffer(torch.device("cpu"))
STATES = np.array([FIXED, FIXED, MASKED, UNMASKED + REMASKED, MASKED, MASKED], np.int8)


def tables() -> RequestStates:
    """Returns the tables of two requests of six positions, whose tokens are ten times the slot plus the position."""
    found = RequestStates(3, 6, BUFFER.device, max_pages=2, num_staged=4)
    found.write([StateWrite(slot, 0, 10 * slot + np.arange(6), STATES) for slot in (2, 0)], BUFFER)
    return found


def blocks(states: RequestStates) -> BlockContent:
    """Returns the last four positions of slot 2, two positions of slot 0, and a block without positions."""
    first = torch.from_numpy(np.append(states.entries(np.array([2, 0]), np.array([2, 1])), 0))
    return states.gather(first, torch.tensor([4, 2, 0]), 4)


def test_blocks_of_unequal_size_are_read_and_written_alone() -> None:
    states = tables()
    before = blocks(states)
    assert before.tokens.tolist() == [[22, 23, 24, 25], [1, 2, 0, 0], [0] * 4]
    assert before.state.tolist() == [
        [MASKED, UNMASKED, MASKED, MASKED], [FIXED, MASKED, FIXED, FIXED], [FIXED] * 4,
    ]  # fmt: skip
    assert before.remasked.nonzero().tolist() == [[0, 1]]
    open_ = before.state != FIXED
    remasked = torch.zeros_like(open_)
    remasked[0, 0] = True
    tokens, state = torch.where(open_, MASK, 10**12), torch.where(open_, MASKED, before.state)  # no token if FIXED
    states.scatter(before, tokens, state, remasked)
    after = blocks(states)
    assert after.tokens.tolist() == [[MASK] * 4, [1, MASK, 0, 0], [0] * 4]
    assert after.remasked.nonzero().tolist() == [[0, 0], [0, 1]], "a position remains one that was masked again"
    others = [states.entries(slot, np.array(at)).tolist() for slot, at in ((2, [0, 1]), (0, [0, 3, 4, 5]))]
    assert [states.tokens[entries].tolist() for entries in others] == [[20, 21], [0, 3, 4, 5]]
    assert (states.tokens[0], states.states[0]) == (0, FIXED)


def test_writes_replace_a_range_and_a_new_request_replaces_all() -> None:
    states = tables()
    states.write([StateWrite(0, 4, np.array([7, 8]), np.array([UNMASKED, MASKED], np.int8))], BUFFER)
    mine = states.entries(0, np.arange(6))
    assert states.tokens[mine].tolist() == [0, 1, 2, 3, 7, 8]
    states.write([StateWrite(0, 0, np.arange(6) + 30, np.full(6, MASKED, np.int8))], BUFFER)
    assert states.tokens[mine].tolist() == [30, 31, 32, 33, 34, 35]
    assert states.states[mine].tolist() == [MASKED] * 6, "the next request has bits of the one before"
    assert states.tokens[states.entries(2, np.arange(6))].tolist() == [20, 21, 22, 23, 24, 25]


def test_staged_tokens_are_no_tokens_of_a_request() -> None:
    states = tables()
    states.write_pages(PageWrites(*np.array([[2, 0], [1, 0], [7, 9]], np.int32)), BUFFER)
    before = states.tokens[: states.first_staged].clone(), states.pages[:3].clone()
    assert before[1].tolist() == [[9, 0], [0, 0], [0, 7]]
    segments = np.array([Segment(n, 5, n + 1, 0, 4, 0) for n in range(2)], np.int32)
    segments = states.stage(StepPlan(segments, np.array([40, 41, 42])), BUFFER)
    assert states.tokens[segments[0, FIRST_TOKEN] :].tolist() == [40, 41, 42, 0]
    assert states.tokens[segments[1, FIRST_TOKEN] :].tolist() == [41, 42, 0]
    assert torch.equal(states.tokens[: states.first_staged], before[0])
    assert torch.equal(states.pages[:3], before[1])


@pytest.mark.parametrize("at_a_time", [1, 16, 1 << 20])
def test_a_checksum_is_that_of_one_slot(at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that differ anywhere but in padding and staged tokens are noticed, with the slot."""
    states = tables()
    before = states.checksums()
    monkeypatch.setattr(request_states, "CHECKSUM_ENTRIES", at_a_time)
    assert (states.checksums() == before).all()
    for table in (states.tokens[1 : states.first_staged], states.states[1:], states.pages.view(-1)):
        for entry in range(len(table)):
            table[entry] += 1
            slots = (states.checksums() != before).nonzero().flatten().tolist()
            assert slots == [entry * states.pages.shape[0] // len(table)]
            table[entry] -= 1
    states.tokens[0] = states.states[0] = states.tokens[states.first_staged] = 1
    assert (states.checksums() == before).all()
    states.tokens[[1, 2]] = states.tokens[[2, 1]]
    assert (states.checksums() != before).tolist() == [True, False, False]
