"""Tests of `edit` for models that insert and delete."""

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.algorithms.base import (
    EditTokens,
    algorithm_keys,
    algorithms_with_edit_tokens,
    get_algorithm,
    register_indel_variant,
)
from runtime.algorithms.insert_delete import InsertDelete
from runtime.errors import ConfigError
from runtime.worker import candidates
from runtime.worker.candidates import SamplerConfig
from runtime.worker.sampler import Sampler, nonzero_records
from tests.algorithms.test_rules import LEVELS, MASK, MAX_TOKEN, SHAPE, History, blocks, check, parameters, plan_of
from tests.examples import examples
from tests.oracle import block as oracle
from tests.oracle.rules import NAIVE_ALGORITHMS
from tests.worker.sampling import sample_plan

DELETE, SPLIT = 1, 7
VOCAB = 11
EDITING = replace(SHAPE, orders=(DELETE, SPLIT))
RULE = algorithms_with_edit_tokens(EditTokens(DELETE, SPLIT))
SAMPLER = SamplerConfig(SHAPE.block, MASK, MAX_TOKEN, eos_ids=(2, 5), edit_tokens=EditTokens(DELETE, SPLIT))
QUIET = oracle.Params(max_tokens=1, algorithm="edit", accept_threshold=1.0, edit_threshold=0.5)


def begun(block: oracle.Block) -> None:
    """Resets the step counts of a random block, and replaces edit tokens in it."""
    block.post_steps = block.force_steps = 0
    for i in block.filled:
        if block.tokens[i] in (DELETE, SPLIT):
            block.tokens[i] = 0


class Blocks:
    """Makes steps with several blocks, and compares each decision with the oracle's."""

    def __init__(self, several: list[oracle.Block], params: list[oracle.Params]) -> None:
        self.several, self.params = several, params
        self.histories: list[History] = [None] * len(several)
        self.head = Sampler(torch.clone, SAMPLER)  # the hidden states are the logits

    def step(self, logits: np.ndarray, force: list[bool]) -> None:
        """Makes one step of all blocks. `logits`: [blocks, B, VOCAB]."""
        n, size = logits.shape[:2]
        plan = plan_of(self.several, self.params, force, self.histories, RULE)
        hidden = torch.from_numpy(logits.reshape(n * size, VOCAB).copy())
        found = list(sample_plan(self.head, plan, hidden))
        for group, (rule, _, batch) in zip(plan.groups, found, strict=True):
            got = rule.decide(batch)
            for row, i in enumerate(group.members.tolist()):
                check(got, row, self.several[i], logits[i], self.params[i], force[i], EDITING)
                if batch.history is not None:
                    self.histories[i] = nonzero_records(batch.history[row].numpy())


@examples(60)
@given(data=st.data())
def test_edit_with_edit_tokens_decides_as_the_oracle(data: st.DataObject) -> None:
    """Blocks of this and of other algorithms, each with its own parameters, over several steps."""
    others = st.sampled_from(["edit", "edit", "edit", *(key for key in NAIVE_ALGORITHMS if key in algorithm_keys())])
    n = data.draw(st.integers(1, 4))
    several = [data.draw(blocks(SHAPE.block)) for _ in range(n)]
    params = [data.draw(parameters(data.draw(others) if i else "edit")) for i in range(n)]
    for block, p in zip(several, params, strict=True):
        if p.algorithm == "edit":
            begun(block)
    run = Blocks(several, params)
    random = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    seen: list[np.ndarray] = []
    for _ in range(data.draw(st.integers(1, 9))):
        if seen and random.random() < 0.5:
            logits = seen[random.integers(len(seen))]
        else:
            logits = random.choice(LEVELS, (n, SHAPE.block, VOCAB)) * random.uniform(0.8, 1.2, (n, SHAPE.block, 1))
            logits[:, :, [DELETE, SPLIT]] += random.uniform(0, 1.5)
            seen.append(logits)
        with mock.patch.object(candidates, "LOGITS_CHUNK_ROWS", data.draw(st.sampled_from([3, 2048]))):
            run.step(logits, [data.draw(st.booleans()) for _ in range(n)])


@examples(40)
@given(blocks(SHAPE.block), st.integers(0, 10**6), st.integers(0, 5), st.booleans())
def test_a_block_ends_in_time_whatever_the_logits(block: oracle.Block, seed: int, limit: int, force: bool) -> None:
    """This includes blocks that never must advance. `check` compares `finished` of each step."""
    begun(block)
    run = Blocks([block], [replace(QUIET, max_post_edit_steps=limit, max_steps_per_block=10**6, edit_threshold=0.0)])
    random = np.random.default_rng(seed)
    steps = 0
    while not block.ended:
        steps += 1
        assert steps <= SHAPE.block + limit
        logits = random.uniform(0, 3, (1, SHAPE.block, VOCAB))
        logits[:, :, [DELETE, SPLIT]] += random.uniform(0, 3)
        run.step(logits, [force])
    assert not block.masked
    assert not {block.tokens[i] for i in block.free} & {DELETE, SPLIT, MASK}


def one(
    tokens: list[int], prompt: int = 0, pinned: tuple[int, ...] = (), **fields: object
) -> tuple[oracle.Block, Blocks]:
    """Returns a block in which MASK is MASKED and the first `prompt` positions and `pinned` are FIXED."""
    state = [
        oracle.PROMPT if i < prompt or i in pinned else oracle.MASKED if token == MASK else oracle.UNMASKED
        for i, token in enumerate(tokens)
    ]
    block = oracle.Block(0, list(tokens), state)
    return block, Blocks([block], [replace(QUIET, **fields)])  # type: ignore[arg-type]


def want(*tokens: int | tuple[int, ...]) -> np.ndarray:
    """Returns logits of one block that prefer these tokens at each position, the most probable first."""
    logits = np.zeros((1, len(tokens), VOCAB))
    for i, row in enumerate(tokens):
        for rank, token in enumerate((row,) if isinstance(row, int) else row):
            logits[0, i, token] = 30.0 - 5 * rank + 0.01 * i
    return logits


Step = tuple[np.ndarray, list[int], list[int]]  # logits, and the tokens and masked positions after the step
FORTH, BACK = want((5, 3, 0), 4, 6, 8), want((3, 5, 0), 4, 6, 8)
# tokens of the block, its fixed positions, the expected steps, and whether the last one ends the block
STEPS: dict[str, tuple[list[int], dict[str, Any], list[Step], bool]] = {
    "delete drops and pads": ([4, 3, 6, 8], {"prompt": 1}, [
        (want(0, DELETE, 6, 8), [4, 6, 8, MASK], [3]), (want(0, 6, 8, 5), [4, 6, 8, 5], []),
    ], False),
    "the step after a padded mask ends": ([4, 6, 8, 5], {"prompt": 1}, [(want(0, 6, 8, 5), [4, 6, 8, 5], [])], True),
    "split inserts and cuts": ([4, 3, 6, 8], {}, [(want(4, SPLIT, 6, 8), [4, MASK, 3, 6], [1])], False),
    "prompt and pinned positions do not move": ([DELETE, 3, SPLIT, 8], {"prompt": 1, "pinned": (2,)}, [
        (want(5, SPLIT, 5, 8), [DELETE, MASK, SPLIT, 3], [1]),
        (want(5, 6, 5, DELETE), [DELETE, 6, SPLIT, MASK], [3]),
    ], False),
    "a repeated state is left for a token that the position has not had": ([3, 4, 6, 8], {}, [
        (FORTH, [5, 4, 6, 8], []), (BACK, [3, 4, 6, 8], []), (FORTH, [0, 4, 6, 8], []),
    ], False),
    "a step that writes the current content ends the block": ([3, 4, 6, 8], {}, [
        (want(SPLIT, 4, 6, 8), [MASK, 3, 4, 6], [0]), (want(DELETE, 3, 4, 6), [3, 4, 6, MASK], [3]),
        (want(3, 4, 6, 8), [3, 4, 6, 8], []), (want((SPLIT, 3), 4, 6, 8), [3, 4, 6, 8], []),
    ], True),
}  # fmt: skip


@pytest.mark.parametrize("case", STEPS)
def test_steps(case: str) -> None:
    """`Blocks` also compares each step with the oracle."""
    tokens, fixed, steps, ends = STEPS[case]
    block, run = one(tokens, **fixed)
    for logits, expected, masked in steps:
        assert not block.ended
        run.step(logits, [True])
        assert (block.tokens, block.masked) == (expected, masked)
    assert block.ended == ends


def test_masks_can_be_deleted_and_split() -> None:
    """Two of the four masks pass the threshold. The split one stays an original mask; the deleted one is removed."""
    block, run = one([MASK] * 4, accept_threshold=0.9)
    logits = want(SPLIT, DELETE, 5, 6)
    logits[0, 2:] = 0
    run.step(logits, [False])
    assert (block.masked, block.original) == ([0, 1, 2, 3], {1, 2, 3})


def test_introduced_masks_raise_the_minimum_of_a_step() -> None:
    block, run = one([3, MASK, MASK, 4])
    logits = want(SPLIT, (5, 6), (6, 5), 4)
    logits[0, 2] /= 5
    run.step(logits, [True])
    assert (block.tokens, block.original) == ([MASK, 3, 5, MASK], {3})
    run.step(want(8, 3, 5, 6), [True])  # no confidence is above 1: the minimum is both masks
    assert (block.tokens, block.masked) == ([8, 3, 5, 6], [])


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_the_last_step_writes_no_delete_and_no_split(limit: int) -> None:
    block, run = one([MASK, 4, 6, 8], max_post_edit_steps=limit)
    for step in range(limit + 1):
        ends = step == limit
        run.step(want((DELETE, 5), (SPLIT, 3), 6, 8), [True])
        assert block.ended == ends
    assert not block.masked
    assert not {DELETE, SPLIT} & set(block.tokens)


def test_edit_tokens_above_the_largest_id_can_be_predicted() -> None:
    """The tokenizer may not have these tokens. All other ids above its largest one are forbidden."""
    logits = torch.zeros((1, VOCAB), dtype=torch.float64)
    logits[0, 10] = logits[0, 9] = 5.0
    for orders, best in ((None, 0), (EditTokens(3, 10), 10)):
        head = Sampler(torch.clone, SamplerConfig(4, mask_id=4, max_token_id=8, eos_ids=(2,), edit_tokens=orders))
        block, _ = one([MASK] * 1)
        plan = plan_of([block], [replace(QUIET, algorithm="threshold")], [True], [None])
        ((_, _, batch),) = sample_plan(head, plan, logits.clone())
        assert batch.candidates.tolist() == [[best]]


def test_edit_tokens_change_only_the_algorithm_edit() -> None:
    assert isinstance(RULE("edit"), InsertDelete)
    assert RULE("edit") is RULE("edit")
    assert RULE("threshold") is get_algorithm("threshold")
    assert algorithms_with_edit_tokens(None)("edit") is get_algorithm("edit")
    edit_algorithm, ours = get_algorithm("edit"), RULE("edit")
    assert [f.name for f in ours.fields] == [f.name for f in edit_algorithm.fields]
    assert ours.modes == edit_algorithm.modes
    assert {f.name: f.high for f in ours.fields}["max_post_edit_steps"] == 256
    with pytest.raises(ValueError, match="twice"):
        register_indel_variant("edit")(InsertDelete)
    with pytest.raises(ConfigError, match="'nope' is not known"):
        RULE("nope")
