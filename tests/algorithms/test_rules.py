"""Tests of the sampler, the unmasking algorithms and draws on random logits against the oracle, block by block."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.algorithms.base import (
    BlockUpdate,
    LogitStat,
    UnmaskingAlgorithm,
    algorithm_keys,
    get_algorithm,
    register_algorithm,
)
from runtime.algorithms.logits_ops import DEFAULT_LOGITS_OPS, Candidate
from runtime.errors import ConfigError
from runtime.kernels.ops import TORCH
from runtime.kernels.uniform_numbers import uniform_numbers_reference
from runtime.layers.layer_factory import LayerFactory
from runtime.layers.lm_head import LMHead
from runtime.request.field_spec import Field
from runtime.scheduling.request import AlgorithmMemory
from runtime.scheduling.step_plan import FIXED, MASKED, UNMASKED, AlgorithmBatch, DenoiseBlocks
from runtime.worker import candidates
from runtime.worker.candidates import SamplerConfig
from runtime.worker.input_batch import _history
from runtime.worker.sampler import Sampler, nonzero_records
from tests.engine.samples import other_fields
from tests.examples import examples
from tests.oracle import block as oracle
from tests.oracle import dmax
from tests.oracle.draws import choose, filtered, softmax, uniform
from tests.oracle.rules import NAIVE_ALGORITHMS
from tests.worker.sampling import alone, block_numbers, make_sampling_params, sample_plan

VOCAB, MASK, MAX_TOKEN = 11, 9, 9
SHAPE = oracle.Shape(block=4, buffer=1, mask_id=MASK, eos_ids=frozenset({2, 5}), max_token_id=MAX_TOKEN)
History = np.ndarray | None  # of one block
STATE = {oracle.PROMPT: FIXED, oracle.MASKED: MASKED, oracle.UNMASKED: UNMASKED}

LEVELS = (0.0, 0.0, 0.5, 1.0, 2.5)  # coarse: ties are common
COMPARED = (*NAIVE_ALGORITHMS, "edit", "dmax")
OTHERS = [key for key in COMPARED if key in algorithm_keys()]  # for further blocks of a batch


def draw(
    logits: torch.Tensor, uniform: torch.Tensor, num_unfiltered: int = 0, **sampling_params: torch.Tensor
) -> Candidate:
    return DEFAULT_LOGITS_OPS.multinomial(
        DEFAULT_LOGITS_OPS.filtered_probs(
            logits, make_sampling_params(**sampling_params), num_unfiltered=num_unfiltered
        ),
        uniform,
    )


@st.composite
def blocks(draw: st.DrawFn, size: int) -> oracle.Block:
    prompt = draw(st.integers(0, size - 1))
    states = [oracle.PROMPT] * prompt + draw(
        st.lists(st.sampled_from([oracle.MASKED, oracle.UNMASKED]), min_size=size - prompt, max_size=size - prompt)
    )
    tokens = [MASK if s == oracle.MASKED else draw(st.integers(0, 8)) for s in states]
    b = oracle.Block(start=8, tokens=tokens, state=states)
    b.force_steps = draw(st.integers(0, 6))
    b.step_budget = draw(st.sampled_from([None, 1, 2, 3]))
    b.post_steps = draw(st.integers(0, 3))
    b.remasked = {i for i in b.filled if draw(st.booleans())}
    return b


@st.composite
def parameters(draw: st.DrawFn, algorithm: str) -> oracle.Params:
    level = st.sampled_from([0.0, 0.1, 0.2, 0.4, 0.9, 1.0])
    return oracle.Params(
        max_tokens=1, algorithm=algorithm, accept_threshold=draw(level), edit_threshold=draw(level),
        remask_threshold=draw(level) if algorithm == "threshold" else 0.0, max_post_edit_steps=draw(st.integers(0, 3)),
        penalty_lambda=draw(st.sampled_from([0.0, 1.0])), max_steps_per_block=draw(st.integers(1, 8)),
        steps=draw(st.integers(1, 6)), confidence_metric=draw(st.sampled_from(["max_prob", "margin", "neg_entropy"])),
        factor=draw(st.sampled_from([0.0, 0.5, 1.0, 1.7, 2.5])),
        entropy_bound=draw(st.sampled_from([0.0, 1.0, 2.5, 4.0, 100.0])), low_threshold=draw(level),
        local_leap_anchor=draw(level), local_leap_neighbor=draw(level), local_leap_radius=draw(st.integers(0, 4)),
        credit_weight=draw(st.sampled_from([0.0, 0.7, 3.0])), credit_decay=draw(st.sampled_from([0.0, 0.8, 1.0])),
        credit_power=draw(st.sampled_from([0.2, 1.0])),
        suppress_eos=draw(st.sampled_from(["none", "confidence", "logits"])),
        token_merge_top_k=draw(st.sampled_from([1, 2, 3, 20])), others=draw(other_fields(algorithm, SHAPE.block)),
    )  # fmt: skip


def values(rule: UnmaskingAlgorithm, p: oracle.Params) -> dict[str, Any]:
    return {field.name: getattr(p, field.name.replace(".", "_")) for field in rule.fields}


def param_row(rule: UnmaskingAlgorithm, p: oracle.Params) -> list[float]:
    return [p.temperature, p.top_p, p.top_k, p.min_p, *rule.param_row(values(rule, p))]


def plan_of(
    several: list[oracle.Block], params: list[oracle.Params], force: list[bool], histories: list[History],
    get_algorithm: Callable[[str], UnmaskingAlgorithm] = get_algorithm,
) -> DenoiseBlocks:  # fmt: skip
    """Returns the plan of one step of these blocks, as the engine builds it."""
    n, size = len(several), SHAPE.block
    state = np.array([[STATE[s] for s in b.state] for b in several], dtype=np.int8)
    blocks = [SimpleNamespace(memory=AlgorithmMemory(history=history), size=size) for history in histories]
    groups = []
    for key in dict.fromkeys(p.algorithm for p in params):
        rule, members = get_algorithm(key), [i for i in range(n) if params[i].algorithm == key]
        wants = LogitStat.NONE
        for i in members:
            wants |= rule.required_stats(values(rule, params[i]))
        rows = np.array([param_row(rule, params[i]) for i in members])
        group = AlgorithmBatch(rule, np.array(members), rows, int(wants))
        groups.append(replace(group, history=_history(group, blocks, size)))
    unstable = np.array([get_algorithm(p.algorithm).may_revise(values(get_algorithm(p.algorithm), p)) for p in params])
    return DenoiseBlocks(
        rows=np.arange(n) * size, **alone(n, size), tokens=np.array([b.tokens for b in several]), state=state,
        sampled=(state == MASKED) | ((state == UNMASKED) & unstable[:, None]),
        numbers=block_numbers(
            n, must_advance=np.array(force), num_steps=np.array([b.force_steps for b in several]),
            initial_masks=np.array([len(b.free) for b in several]),
            step_budget=np.array([b.step_budget or 0 for b in several]),
            post_edit_steps=np.array([b.post_steps for b in several]),
        ),
        sampling_params=None, groups=tuple(groups),
    )  # fmt: skip


def direct_head() -> LMHead:
    """Returns an LM head whose logits are the hidden states, and whose argmax computes no logits."""
    weight = LayerFactory.create("cpu", torch.float64).vocab_weight(VOCAB, VOCAB)
    weight.load((), torch.eye(VOCAB))
    head = LMHead(weight, TORCH)
    head.fused_argmax = True
    return head


@pytest.mark.parametrize("algorithm", COMPARED)
@examples(40)
@given(data=st.data())
def test_a_rule_decides_as_the_oracle(algorithm: str, data: st.DataObject) -> None:
    """Blocks of this and of other algorithms, each with its own parameters, over several steps."""
    others = st.sampled_from([algorithm, algorithm, *OTHERS])
    size, n = SHAPE.block, data.draw(st.integers(1, 4))
    several = [data.draw(blocks(size)) for _ in range(n)]
    params = [data.draw(parameters(data.draw(others) if i else algorithm)) for i in range(n)]
    histories: list[History] = [None] * n
    random = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    make = data.draw(st.sampled_from([lambda: torch.clone, direct_head]))  # the hidden states are the logits
    head = Sampler(make(), SamplerConfig(size, MASK, MAX_TOKEN, tuple(sorted(SHAPE.eos_ids))))
    for _ in range(data.draw(st.integers(1, 3))):
        force = [data.draw(st.booleans()) for _ in range(n)]
        logits = random.choice(LEVELS, (n, size, VOCAB))
        # Confidences of rows with the same logits in another order differ only by rounding. So each row has its own
        # spacing.
        logits *= random.uniform(0.8, 1.2, (n, size, 1)) * data.draw(st.sampled_from([1.0, 1.0, 4.0]))
        plan = plan_of(several, params, force, histories)
        hidden = torch.from_numpy(logits.reshape(n * size, VOCAB).copy())
        with mock.patch.object(candidates, "LOGITS_CHUNK_ROWS", data.draw(st.sampled_from([3, 2048]))):
            remasked = np.array([[i in b.remasked for i in range(size)] for b in several])
            found = list(sample_plan(head, plan, hidden, remasked=remasked))
        for group, (rule, _, batch) in zip(plan.groups, found, strict=True):
            got = rule.decide(batch)
            for row, i in enumerate(group.members.tolist()):
                check(got, row, several[i], logits[i], params[i], force[i])
                if batch.history is not None:
                    histories[i] = nonzero_records(batch.history[row].numpy())


@pytest.mark.parametrize("algorithm", [*NAIVE_ALGORITHMS, "edit"])
@given(blocks(SHAPE.block), st.integers(0, 10**6), st.data())
def test_a_block_that_need_not_advance_unmasks_nothing_below_the_threshold(
    algorithm: str, block: oracle.Block, seed: int, data: st.DataObject
) -> None:
    """No position passes a threshold. A block that must advance still unmasks at least one; another one does not."""
    strict = {"accept_threshold": 1.0, "low_threshold": 1.0, "local_leap_anchor": 1.0, "factor": 0.0}
    others = data.draw(other_fields(algorithm, SHAPE.block))
    p = oracle.Params(
        max_tokens=1, algorithm=algorithm, entropy_bound=0.0, edit_threshold=1.0, steps=2, others=others, **strict
    )
    logits = np.random.default_rng(seed).uniform(0, 2, (SHAPE.block, VOCAB))
    head = Sampler(torch.clone, SamplerConfig(4, MASK, MAX_TOKEN, eos_ids=(2,)))
    for force in (False, True):
        plan = plan_of([block], [p], [force], [None])
        hidden = torch.from_numpy(logits.copy())
        ((rule, _, batch),) = sample_plan(head, plan, hidden)
        decision = rule.decide(batch)
        filled = int((batch.masked & ~decision.masked).sum())
        assert filled == 0 if not force else filled >= min(len(block.masked), 1)
        assert not decision.edited.any()
        assert bool(decision.forced) <= force


def check(
    got: BlockUpdate, row: int, b: oracle.Block, logits: np.ndarray, p: oracle.Params, force: bool,
    shape: oracle.Shape = SHAPE,
) -> None:  # fmt: skip
    """Asserts that the decision about a block equals the oracle's, and applies it to the oracle's block."""
    if b.ended:
        return
    decide = dmax.decide if p.algorithm == "dmax" else oracle.decide
    expected = decide(b, logits, p, shape, force=force, step=0)
    if p.algorithm == "dmax":
        check_mixture(got, row, b, expected.top_tokens)
    assert set(torch.nonzero(got.edited[row]).flatten().tolist()) == set(expected.edit)
    assert set(torch.nonzero(got.remasked[row]).flatten().tolist()) == expected.remask
    before = list(b.masked)
    oracle.apply(b, expected, MASK, force=force)
    assert torch.nonzero(got.masked[row]).flatten().tolist() == b.masked
    left = [t for j, t in enumerate(got.tokens[row].tolist()) if j not in b.masked]
    assert left == [t for j, t in enumerate(b.tokens) if j not in b.masked]
    if p.edits:
        assert bool(got.finished[row]) == b.ended
    elif p.remask_threshold == 0:
        assert bool(got.finished[row]) == (not b.masked)
    assert bool(got.forced[row]) <= (force and bool(before))


def check_mixture(got: BlockUpdate, row: int, b: oracle.Block, expected: dict[int, list[tuple[int, float]]]) -> None:
    """Asserts that positions that are not FIXED have the `token_merge_top_k` most probable tokens."""
    assert got.soft_tokens is not None
    for i in range(len(b.tokens)):
        ids, probs = got.soft_tokens.ids[row, i].tolist(), got.soft_tokens.probs[row, i].tolist()
        found = [(id, prob) for id, prob in zip(ids, probs, strict=True) if prob > 0]
        top_tokens = [(id, prob) for id, prob in expected.get(i, []) if prob > 0]
        assert [id for id, _ in found] == [id for id, _ in top_tokens]
        assert [prob for _, prob in found] == pytest.approx([prob for _, prob in top_tokens], rel=1e-9)


@given(
    st.integers(1, 5),
    st.lists(st.sampled_from([0.3, 1.0, 2.0]), min_size=5, max_size=5),
    st.lists(st.integers(0, 12), min_size=5, max_size=5),
    st.lists(st.sampled_from([0.1, 0.5, 0.9, 1.0]), min_size=5, max_size=5),
    st.integers(0, 2**64 - 1),
)
def test_draws_equal_the_oracles(
    n: int, temperature: list[float], top_k: list[int], top_p: list[float], seed: int
) -> None:
    rows = np.random.default_rng(seed).normal(0, 3, (n, VOCAB))
    logits = torch.from_numpy(rows)
    draws = torch.from_numpy(np.array([[seed, 3, 0]], dtype=np.uint64).view(np.int64))
    numbers = uniform_numbers_reference(draws, torch.zeros(n, dtype=torch.int64), torch.arange(n))
    got = draw(
        logits, temperature=torch.tensor(temperature[:n], dtype=torch.float64), top_k=torch.tensor(top_k[:n]),
        top_p=torch.tensor(top_p[:n], dtype=torch.float64), uniform=numbers,
    )  # fmt: skip
    for i, row in enumerate(rows):
        expected = choose(row, temperature[i], top_k[i], top_p[i], seed, i, 3)
        assert got.token[i] == expected.token
        assert float(got.confidence[i]) == pytest.approx(expected.conf, rel=1e-9)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 2**20))
def test_uniforms_equal_the_oracles(seed: int, position: int, step: int) -> None:
    draws = torch.from_numpy(np.array([[seed, step, position // 2]], dtype=np.uint64).view(np.int64))
    got = uniform_numbers_reference(draws, torch.tensor([0]), torch.tensor([position - position // 2]))
    assert got.tolist() == [uniform(seed, position, step)]


def test_ties() -> None:
    """Equal logits: the lowest id; equal confidences: the lowest position; top-k among equals: the lowest ids."""
    flat = torch.zeros(2, VOCAB, dtype=torch.float64)
    assert DEFAULT_LOGITS_OPS.greedy(flat).token.tolist() == [0, 0]
    one = torch.ones(4, dtype=torch.float64)
    picked = draw(
        torch.zeros(4, VOCAB, dtype=torch.float64), temperature=one, top_k=torch.full((4,), 3), top_p=one,
        uniform=torch.tensor([0.0, 0.34, 0.67, 0.999], dtype=torch.float64),
    )  # fmt: skip
    assert picked.token.tolist() == [0, 1, 2, 2]
    assert np.flatnonzero(filtered(np.zeros(VOCAB), 3, 1.0)).tolist() == [0, 1, 2]


def test_the_top_tokens() -> None:
    """They are in descending order, of equal ones the lowest id first. Missing ones have probability 0."""
    logits = torch.tensor([[1.0, 3.0, 1.0, 3.0], [-torch.inf, 0.0, -torch.inf, -torch.inf], [0.0, 0.0, 0.0, 0.0]])
    before = logits.clone()
    for count in (1, 2, 3, 6):
        found = DEFAULT_LOGITS_OPS.top_tokens(logits, count)
        assert torch.equal(logits, before)
        probs = logits.softmax(1)
        for row, order in enumerate(([1, 3, 0, 2], [1], [0, 1, 2, 3])):
            some = order[:count]
            assert found.ids[row, : len(some)].tolist() == some
            torch.testing.assert_close(found.probs[row, : len(some)], probs[row, some])
            assert not found.probs[row, len(some) :].any()
    assert found.probs[1].tolist() == [1, 0, 0, 0, 0, 0]


def test_probabilities_stay_in_the_logits_precision() -> None:
    logits = torch.randn(6, 50, dtype=torch.float32)
    got = DEFAULT_LOGITS_OPS.greedy(logits)
    assert got.confidence.dtype == torch.float32
    expected = [softmax(row.double().numpy()).max() for row in logits]
    torch.testing.assert_close(got.confidence.double(), torch.tensor(expected), atol=1e-6, rtol=1e-5)


def test_registry() -> None:
    # tests/oracle/canvas.py is the naive decoder of `noise`
    missing = set(algorithm_keys()) - {*COMPARED, "noise"}
    assert not missing, f"write naive functions {missing} in tests/oracle/rules.py, and list them in NAIVE_ALGORITHMS"
    with pytest.raises(ConfigError, match="'nope' is not known"):
        get_algorithm("nope")
    with pytest.raises(ValueError, match="twice"):
        register_algorithm(type(get_algorithm("threshold")))

    class Odd(UnmaskingAlgorithm):
        key = "odd"
        fields = (Field(name="accept_threshold", kind="flag", help="no number", default=True),)

    with pytest.raises(ValueError, match="'accept_threshold' is of another kind"):
        register_algorithm(Odd)
