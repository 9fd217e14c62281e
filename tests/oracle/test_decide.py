"""Tests of one step of one block per unmasking algorithm, with results computed by hand."""

from dataclasses import replace

import numpy as np
import pytest

from tests.oracle.block import MASKED, PROMPT, UNMASKED, Block, Decision, Params, Shape, apply, decide
from tests.oracle.draws import softmax
from tests.oracle.rules import quota

MASK = 5
SHAPE = Shape(block=4, buffer=2, mask_id=MASK, eos_ids=frozenset({0}), max_token_id=6)  # vocabulary 8: id 7 is banned


def rows(*tops: tuple[int, float]) -> np.ndarray:
    """Returns logits [B, 8]. Row i gives its token probability p; the rest is split evenly among ids 0 to 4 and 6."""
    out = np.full((len(tops), 8), -np.inf)
    allowed = [0, 1, 2, 3, 4, 6]
    for i, (token, p) in enumerate(tops):
        out[i, allowed] = np.log((1 - p) / (len(allowed) - 1))
        out[i, token] = np.log(p)
    out[:, [MASK, 7]] = 9.0  # banned ids, which must have no effect
    return out


def block(*tokens: int | None, prompt: int = 0) -> Block:
    """Returns a block with these tokens. None is MASKED; the first `prompt` tokens belong to the prompt."""
    states = [PROMPT if i < prompt else MASKED if t is None else UNMASKED for i, t in enumerate(tokens)]
    return Block(start=8, tokens=[MASK if t is None else t for t in tokens], state=states)


def threshold(**changes: float) -> Params:
    return Params(max_tokens=20, **({"accept_threshold": 0.6} | changes))


def edit(**changes: float) -> Params:
    values = {"accept_threshold": 0.6, "edit_threshold": 0.5} | changes
    return Params(max_tokens=20, algorithm="edit", **values)


def run(b: Block, logits: np.ndarray, p: Params, force: bool = True, step: int = 0) -> Decision:
    return decide(b, logits, p, SHAPE, force=force, step=step)


def test_threshold_takes_all_above_and_not_the_equal() -> None:
    logits = rows((1, 0.7), (2, 0.6), (3, 0.65), (4, 0.5))
    every = run(block(None, None, None, None), logits, threshold(accept_threshold=0.55)).accept
    assert every == {0: 1, 1: 2, 2: 3}
    exact = float(softmax(np.delete(logits[1], [MASK, 7]))[2])
    assert run(block(None, None, None, None), logits, threshold(accept_threshold=exact)).accept == {0: 1, 2: 3}


def test_threshold_forces_the_single_best_only_where_it_may() -> None:
    logits = rows((1, 0.3), (2, 0.5), (3, 0.5), (4, 0.2))
    assert run(block(None, None, None, None), logits, threshold()).accept == {1: 2}  # a tie: the lower position
    assert run(block(None, None, None, None), logits, threshold(), force=False).accept == {}
    assert run(block(1, 2, None, None), logits, threshold()).accept == {2: 3}
    assert run(block(1, 2, 3, 4), logits, threshold()).accept == {}


def test_ban_hides_mask_and_padding_ids() -> None:
    logits = rows((6, 0.9), (0, 0.9), (1, 0.9), (2, 0.9))
    assert run(block(None, None, None, None), logits, threshold()).accept == {0: 6, 1: 0, 2: 1, 3: 2}


def test_cap_counts_forcing_steps_and_fills() -> None:
    logits = rows((1, 0.3), (2, 0.4), (3, 0.5), (4, 0.2))
    b = block(None, None, None, None)
    p = threshold(max_steps_per_block=3)
    b.force_steps = 2
    assert run(b, logits, p, force=False).accept == {}
    assert run(b, logits, p).accept == {0: 1, 1: 2, 2: 3, 3: 4}
    b.force_steps = 1
    assert run(b, logits, p).accept == {2: 3}
    assert run(b, logits, replace(p, algorithm="fixed", max_steps_per_block=2)).accept == {0: 1, 1: 2, 2: 3, 3: 4}
    assert run(b, logits, replace(p, algorithm="edit", max_steps_per_block=2)).accept == {0: 1, 1: 2, 2: 3, 3: 4}


def test_remasking() -> None:
    logits = rows((1, 0.9), (2, 0.9), (3, 0.9), (4, 0.9))
    p = threshold(remask_threshold=0.5)
    b = block(1, 1, None, 1, prompt=1)  # offset 1 and 3 are improbable now; the prompt is never touched
    assert run(b, logits, p) == Decision(accept={2: 3}, remask={1, 3})
    assert run(b, logits, p, force=False) == Decision(accept={2: 3}, remask={1, 3})
    b.remasked = {3}
    assert run(b, logits, p).remask == {1}
    assert run(block(1, 2, 3, 4), logits, p) == Decision()
    b.force_steps = p.max_steps_per_block - 1
    assert run(b, logits, p).remask == set()
    assert run(b, logits, p, force=False).remask == {1}
    b.force_steps = p.max_steps_per_block
    assert run(b, logits, p, force=False).remask == set()


def test_remasking_uses_the_softmax_without_temperature() -> None:
    logits = rows((1, 0.9), (2, 0.9), (3, 0.9), (4, 0.9))
    b = block(1, 3, None, None)  # id 3 at offset 1 has probability 0.02
    for temperature in (0.0, 0.3, 5.0):
        hot = threshold(remask_threshold=0.05, temperature=temperature)
        assert run(b, logits, hot).remask == {1}
        assert run(b, logits, replace(hot, remask_threshold=0.01)).remask == set()


def test_apply_remasks_and_remembers() -> None:
    b = block(1, None, 3, None)
    apply(b, Decision(accept={1: 4}, remask={0}), MASK, force=False)
    assert (b.tokens, b.masked, b.filled) == ([MASK, 4, 3, MASK], [0, 3], [1, 2])
    assert (b.remasked, b.force_steps, b.written) == ({0}, 0, {1})


@pytest.mark.parametrize(
    ("steps", "prompt", "remainder", "expected"),
    [(2, 0, "first", [2, 2]), (3, 0, "first", [2, 1, 1]), (4, 0, "first", [1, 1, 1, 1]), (9, 0, "first", [1, 1, 1, 1]),
     (1, 0, "first", [4]), (2, 1, "first", [2, 1]), (2, 0, "spread", [2, 2]), (3, 0, "spread", [2, 1, 1]),
     (9, 1, "spread", [1, 1, 1]), (1, 0, "spread", [4]), (2, 1, "spread", [2, 1])],
)  # fmt: skip
def test_fixed_splits_the_masks(steps: int, prompt: int, remainder: str, expected: list[int]) -> None:
    logits = rows((1, 0.3), (2, 0.4), (3, 0.5), (4, 0.2))
    b = block(*[9] * prompt, *[None] * (4 - prompt), prompt=prompt)
    p = Params(max_tokens=20, algorithm="fixed", steps=steps, step_remainder=remainder)
    taken = []
    while b.masked:
        idle = run(b, logits, p, force=False)
        assert idle == Decision()
        apply(b, idle, MASK, force=False)  # `steps` does not count it
        decision = run(b, logits, p)
        best = sorted(b.masked, key=lambda i: (-[0.3, 0.4, 0.5, 0.2][i], i))
        assert sorted(decision.accept) == sorted(best[: len(decision.accept)])
        apply(b, decision, MASK, force=True)
        taken.append(len(decision.accept))
    assert taken == expected


@pytest.mark.parametrize(
    ("masks", "steps", "first", "spread"),
    [(7, 3, [3, 2, 2], [3, 2, 2]), (8, 5, [2, 2, 2, 1, 1], [2, 2, 1, 2, 1]), (7, 4, [2, 2, 2, 1], [2, 2, 2, 1]),
     (6, 4, [2, 2, 1, 1], [2, 1, 2, 1]), (6, 6, [1] * 6, [1] * 6), (10, 4, [3, 3, 2, 2], [3, 2, 3, 2])],
)  # fmt: skip
def test_a_remainder_is_first_or_spread(masks: int, steps: int, first: list[int], spread: list[int]) -> None:
    for remainder, expected in (("first", first), ("spread", spread)):
        assert [quota(masks, steps, done, remainder) for done in range(steps)] == expected


def test_edit_replaces_what_is_sure_and_different() -> None:
    logits = rows((1, 0.7), (2, 0.7), (3, 0.4), (4, 0.7))
    b = block(9, 3, 1, None, prompt=1)
    assert run(b, logits, edit()) == Decision(accept={3: 4}, edit={1: 2})
    assert run(b, logits, edit(edit_threshold=0.3)) == Decision(accept={3: 4}, edit={1: 2, 2: 3})
    assert run(block(1, 2, 3, 4), logits, edit(edit_threshold=0.0)) == Decision(ends=True)
    # edits do not depend on `force`; only the unmasking of the best position does
    assert run(b, logits, edit(accept_threshold=0.9), force=False) == Decision(edit={1: 2})


def test_edit_ends() -> None:
    logits = rows((1, 0.7), (2, 0.7), (3, 0.7), (4, 0.7))
    b = block(None, None, None, None)
    for masked_after, ended in ((0, False), (0, True)):
        apply(b, run(b, logits, edit()), MASK, force=True)
        assert (len(b.masked), b.ended) == (masked_after, ended)
    before = (list(b.tokens), b.post_steps)
    apply(b, run(b, rows(*[(6, 0.99)] * 4), edit()), MASK, force=True)
    assert (b.tokens, b.post_steps) == before  # an ended block does not change


def test_edit_ends_at_the_cap_without_its_edits() -> None:
    """Every step prefers another token. The edits of 2 post steps are applied; the third ends the block without any."""
    b = block(None, None, None, None)
    p = edit(max_post_edit_steps=2)
    history = []
    for step in range(4):
        apply(b, run(b, rows(*[(1 + step, 0.9)] * 4), p), MASK, force=True)
        history.append((b.tokens[0], b.ended))
    assert history == [(1, False), (2, False), (3, False), (3, True)]
    none = block(None, None, None, None)
    apply(none, run(none, rows(*[(1, 0.9)] * 4), edit(max_post_edit_steps=0)), MASK, force=True)
    apply(none, run(none, rows(*[(2, 0.9)] * 4), edit(max_post_edit_steps=0)), MASK, force=True)
    assert (none.tokens, none.ended) == ([1] * 4, True)


def test_penalty_moves_argmax_and_probability() -> None:
    logits = rows((1, 0.6), (1, 0.6), (1, 0.6), (1, 0.6))  # the others: 0.08 each
    b = block(1, None, None, 1)
    lam = float(np.log(0.6 / 0.04))  # reduces the weight of token 1 at offset 1 from 0.6 to 0.04
    accept = run(b, logits, edit(penalty_lambda=lam, accept_threshold=0.0)).accept
    assert accept == {1: 0, 2: 1}  # offset 2 follows a mask: no penalty; offset 1 takes the lowest of five equal ids
    # 0.08 / 0.44 = 0.1818: the probability is that after the penalty
    assert run(b, logits, edit(penalty_lambda=lam, accept_threshold=0.18), force=False).accept == {1: 0, 2: 1}
    assert run(b, logits, edit(penalty_lambda=lam, accept_threshold=0.19), force=False).accept == {2: 1}
    assert run(b, logits, edit(accept_threshold=0.19), force=False).accept == {1: 1, 2: 1}
    # an UNMASKED position after an equal token is penalized too; offset 0 never is
    c = block(1, 1, 2, 2)
    assert run(c, logits, edit(penalty_lambda=lam, edit_threshold=0.18)).edit == {1: 0, 2: 0, 3: 1}
    prompt = block(1, None, None, None, prompt=1)
    assert run(prompt, logits, edit(penalty_lambda=lam, accept_threshold=0.0)).accept[1] == 0


def test_hot_edit_draws_masks_and_edits_greedily() -> None:
    logits = rows((1, 0.5), (2, 0.5), (3, 0.5), (4, 0.5))
    b = block(6, 6, None, None)
    seen = set()
    for step in range(60):
        d = run(b, logits, edit(temperature=3.0, accept_threshold=0.0, edit_threshold=0.3), step=step)
        assert d.edit == {0: 1, 1: 2}
        seen.add((d.accept[2], d.accept[3]))
    assert len(seen) > 10


def test_same_token_ratio() -> None:
    b = block(9, None, None, None, prompt=1)
    assert b.same_token_ratio == 0.0
    apply(b, Decision(accept={1: 1, 2: 2}), MASK, force=True)
    assert b.same_token_ratio == 0.0
    apply(b, Decision(accept={3: 1}, edit={1: 4}), MASK, force=True)
    assert b.same_token_ratio == pytest.approx(1 / 3)
    apply(b, Decision(), MASK, force=True)
    assert b.same_token_ratio == 1.0
