"""Tests of the oracle's multi-block loop with scripted logits.

See docs/research/decoding-rules.md#the-multi-block-loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tests.oracle.block import Params, Shape
from tests.oracle.decode import Result, decode, longest_run_cut

VOCAB, MASK, EOS = 9, 8, 0
SHAPE = Shape(block=4, buffer=1, mask_id=MASK, eos_ids=frozenset({EOS}), max_token_id=8)


def scripted(conf: Callable[[int, int], float], token: Callable[[int], int]) -> Callable[[Sequence[int]], np.ndarray]:
    """Returns a model that gives token(a) the probability conf(a, call) at position a. `call` counts from 0."""
    calls = iter(range(10**6))

    def logits_of(ids: Sequence[int]) -> np.ndarray:
        call = next(calls)
        out = np.zeros((len(ids), VOCAB))
        for a in range(len(ids)):
            p = conf(a, call)
            out[a] = np.log((1 - p) / (VOCAB - 2))
            out[a, token(a)] = np.log(p)
        return out

    return logits_of


def token_of(a: int) -> int:
    return 1 + a % 3


def opened(result: Result, shape: Shape = SHAPE) -> list[tuple[int, int]]:
    """Returns the numbers of the first open block and of the block after the last open one, after each step."""
    return [(e.start // shape.block, (e.start + len(e.tokens)) // shape.block) for e in result.events]


def test_one_block_a_step_when_everything_is_sure() -> None:
    r = decode(scripted(lambda a, n: 0.99, token_of), [1] * 4, Params(max_tokens=10), SHAPE)
    assert (r.nfe, r.finish_reason, r.tokens) == (3, "length", [token_of(a) for a in range(4, 14)])
    assert opened(r) == [(1, 2), (2, 3), (3, 4)]  # the block of each step; its forward also commits the block before


def test_one_token_a_step_when_nothing_is_sure() -> None:
    r = decode(scripted(lambda a, n: 0.3, token_of), [1] * 6, Params(max_tokens=7), SHAPE)
    # block 1 has 2 masks, block 2 four, block 3 one before the answer's end; of equal positions the leftmost is first
    assert (r.nfe, r.tokens) == (7, [token_of(a) for a in range(6, 13)])


def test_the_last_block_is_opened_completely() -> None:
    """Positions past the end are denoised too, and before a position of the answer if their confidence is higher."""
    r = decode(scripted(lambda a, n: 0.5 if a == 7 else 0.3, token_of), [1] * 4, Params(max_tokens=1), SHAPE)
    assert (r.nfe, r.tokens) == (2, [token_of(4)])
    assert r.events[0].masked == [0, 1, 2]


def test_opening_needs_progress_and_buffer_space() -> None:
    """A block that must advance unmasks one token per step. The next one opens at 1/4 and must advance at 0.9."""
    conf = scripted(lambda a, n: 0.3, token_of)
    r = decode(conf, [1] * 4, Params(max_tokens=12), replace(SHAPE, buffer=3))
    # block 2 opens before step 2 (block 1 at 1/4) but block 1 is not semi-complete until it is complete (4/4)
    assert opened(r)[:5] == [(1, 2), (1, 3), (1, 3), (1, 3), (2, 3)]
    assert [len(e.masked) for e in r.events[:6]] == [3, 6, 5, 4, 3, 6]
    delayed = decode(scripted(lambda a, n: 0.3, token_of), [1] * 4, Params(max_tokens=12, add_block_threshold=0.75),
                  replace(SHAPE, buffer=3))  # fmt: skip
    assert opened(delayed)[:4] == [(1, 2), (1, 2), (1, 2), (1, 3)]
    narrow = decode(scripted(lambda a, n: 0.3, token_of), [1] * 4, Params(max_tokens=12), SHAPE)
    assert opened(narrow)[:6] == [(1, 2)] * 4 + [(2, 3)] * 2


def test_semi_complete_predecessor_lets_the_next_force() -> None:
    p = Params(max_tokens=8, semi_complete_threshold=0.5)
    r = decode(scripted(lambda a, n: 0.3, token_of), [1] * 4, p, replace(SHAPE, buffer=2))
    # before step 3 the progress of block 1 is 2/4: from then on both blocks unmask one token per step
    assert [len(e.masked) for e in r.events] == [3, 6, 4, 2, 1, 0]


def test_blocks_to_cache_leave_buffer_space() -> None:
    """A TO_CACHE block does not count against S. With S=1, the forward that commits it denoises the next."""
    r = decode(scripted(lambda a, n: 0.99, token_of), [1] * 4, Params(max_tokens=8, ignore_eos=True), SHAPE)
    assert r.nfe == 2


def test_unaligned_block_is_active_from_the_start() -> None:
    p = Params(max_tokens=8, add_block_threshold=0.0)
    r = decode(scripted(lambda a, n: 0.3, token_of), [1] * 5, p, replace(SHAPE, buffer=2))
    assert opened(r)[0] == (1, 3)  # the next block may open before its first step already
    p = replace(p, add_block_threshold=0.1)
    r = decode(scripted(lambda a, n: 0.3, token_of), [1] * 5, p, replace(SHAPE, buffer=2))
    assert opened(r)[:2] == [(1, 2), (1, 3)]


def test_eos_ends_and_stops_opening() -> None:
    token = lambda a: EOS if a == 6 else token_of(a)  # noqa: E731
    sure = scripted(lambda a, n: 0.95 if a == 6 else 0.3, token)
    r = decode(sure, [1] * 4, Params(max_tokens=12), replace(SHAPE, buffer=3))
    assert (r.finish_reason, r.tokens, r.nfe) == ("stop", [token_of(4), token_of(5)], 3)
    assert {last for _, last in opened(r)} == {2}  # the EOS was UNMASKED at once: no second block
    ignored = decode(scripted(lambda a, n: 0.95 if a == 6 else 0.3, token), [1] * 4,
                     Params(max_tokens=12, ignore_eos=True), replace(SHAPE, buffer=3))  # fmt: skip
    assert (ignored.finish_reason, len(ignored.tokens), ignored.tokens[2]) == ("length", 12, EOS)


def test_eos_after_the_end_and_in_the_prompt_is_ignored() -> None:
    token = lambda a: EOS if a >= 6 else token_of(a)  # noqa: E731
    r = decode(scripted(lambda a, n: 0.95 if a == 7 else 0.3, token), [EOS, EOS, 1, 2], Params(max_tokens=2), SHAPE)
    assert (r.finish_reason, r.tokens) == ("length", [token_of(4), token_of(5)])
    r = decode(scripted(lambda a, n: 0.95, token), [1] * 4, Params(max_tokens=3), SHAPE)
    assert (r.finish_reason, r.tokens) == ("stop", [token_of(4), token_of(5)])


def test_prompt_mask_id_stays_a_prompt() -> None:
    seen: list[list[int]] = []
    inner = scripted(lambda a, n: 0.3, token_of)

    def logits_of(ids: Sequence[int]) -> np.ndarray:
        seen.append(list(ids))
        return inner(ids)

    prompt = [1, MASK, 2, MASK, MASK, 3]
    r = decode(logits_of, prompt, Params(max_tokens=6), SHAPE)
    assert all(ids[:6] == prompt for ids in seen)
    assert r.sequence[:6] == prompt
    assert r.events[0].tokens[0] == MASK
    assert r.events[0].masked == [3]


def test_max_nfe_gives_the_filled_prefix() -> None:
    conf = lambda a, n: 0.95 if a in (4, 5, 7) else 0.3  # noqa: E731
    r = decode(scripted(conf, token_of), [1] * 4, Params(max_tokens=8, max_nfe=1), SHAPE)
    assert (r.finish_reason, r.nfe, r.tokens) == ("max_nfe", 1, [token_of(4), token_of(5)])
    revising = Params(max_tokens=8, max_nfe=1, algorithm="edit")
    r = decode(scripted(conf, token_of), [1] * 4, revising, SHAPE)
    assert (r.tokens, r.events[0].new_tokens) == ([token_of(4), token_of(5)],) * 2
    eos = decode(scripted(conf, lambda a: EOS if a == 5 else token_of(a)), [1] * 4, revising, SHAPE)
    assert (eos.finish_reason, eos.tokens) == ("max_nfe", [token_of(4)])


def test_repetition() -> None:
    assert longest_run_cut([1, 1, 2, 2, 2, 2], 3) == 5
    assert longest_run_cut([1, 1, 2, 2], 3) is None
    assert longest_run_cut([4], 1) == 1
    r = decode(scripted(lambda a, n: 0.3, lambda a: 1), [1] * 4, Params(max_tokens=12, max_repetition_run=3), SHAPE)
    assert (r.finish_reason, r.tokens, r.nfe) == ("repetition", [1, 1, 1], 3)
    # the step that completes the run also completes the answer: length is checked first
    r = decode(scripted(lambda a, n: 0.99, lambda a: 1), [1] * 4, Params(max_tokens=4, max_repetition_run=3), SHAPE)
    assert (r.finish_reason, r.tokens) == ("length", [1] * 4)


def test_editing_waits_for_the_blocks_end() -> None:
    """An EOS that is edited away does not end the answer. No token is stable before its block ends."""

    def logits_of(ids: Sequence[int]) -> np.ndarray:
        masked_last = ids[-1] == MASK
        return scripted(lambda a, n: 0.95, lambda a: EOS if masked_last and a == 5 else token_of(a))(ids)

    p = Params(max_tokens=8, algorithm="edit", edit_threshold=0.5)
    r = decode(logits_of, [1] * 4, p, SHAPE)
    assert (r.finish_reason, r.tokens) == ("length", [token_of(a) for a in range(4, 12)])
    # block 1: unmask, edit, change nothing; block 2: unmask, change nothing
    assert [len(e.new_tokens) for e in r.events] == [0, 0, 4, 0, 4]


def test_stability_threshold_holds_the_next_block_back() -> None:
    p = Params(max_tokens=8, algorithm="edit", accept_threshold=0.6, edit_threshold=0.6)
    for threshold, steps in ((0.0, 1), (0.5, 3)):
        # block 1 unmasks one token per step; before step 3 it has two, of which one is older: the ratio is 1/2
        r = decode(scripted(lambda a, n: 0.3, token_of), [1] * 4, replace(p, token_stability_threshold=threshold),
                   replace(SHAPE, buffer=2))  # fmt: skip
        assert [b for _, b in opened(r)].index(3) == (1 if threshold == 0 else steps - 1)


def test_remasking_reopens_a_waiting_block() -> None:
    """Block 2 is full before block 1. A later step finds one of its tokens improbable and masks it again."""

    def conf(a: int, n: int) -> float:
        if a < 8:
            return 0.95 if a == 4 else 0.3  # block 1: one confident token, then one per step
        return 0.95 if (n < 2 or a != 9) else 0.01

    p = Params(max_tokens=8, remask_threshold=0.2, ignore_eos=True)
    r = decode(scripted(conf, token_of), [1] * 4, p, replace(SHAPE, buffer=2))
    masked_in_2 = [sum(m >= 4 for m in e.masked) for e in r.events if e.start == 4]
    assert masked_in_2[:3] == [0, 0, 1]
    assert r.finish_reason == "length"
    without_remasking = decode(
        scripted(conf, token_of), [1] * 4, replace(p, remask_threshold=0.0), replace(SHAPE, buffer=2)
    )
    assert all(not [m for m in e.masked if m >= 4] for e in without_remasking.events[1:] if e.start == 4)
