"""Acceptance rules and choices on random tensors against the oracle's decisions, block by block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.engine.description import Field
from runtime.engine.request import FILLED, FIXED, MASKED
from runtime.errors import ConfigError
from runtime.samplers import BlockBatch, Rule, Stat, get_rule, register_rule, rules
from runtime.samplers import choose as choosing
from runtime.samplers.choose import Choice, ban, distribution, entropy, greedy, margin, pick, probability
from runtime.samplers.uniform import uniforms
from tests.oracle import block as oracle
from tests.oracle.draws import choose, filtered, softmax, uniform
from tests.oracle.rules import FILLING

VOCAB, MASK, MAX_TOKEN = 11, 9, 9
SHAPE = oracle.Shape(block=4, buffer=1, mask_id=MASK, eos_ids=frozenset(), max_token_id=MAX_TOKEN)
STATE = {oracle.PROMPT: FIXED, oracle.MASKED: MASKED, oracle.FILLED: FILLED}

LEVELS = (0.0, 0.0, 0.5, 1.0, 2.5)  # coarse: ties are common


def draw(logits: torch.Tensor, uniform: torch.Tensor, **limits: torch.Tensor) -> Choice:
    return pick(distribution(logits, **limits), uniform)


@st.composite
def blocks(draw: st.DrawFn, size: int) -> oracle.Block:
    prompt = draw(st.integers(0, size - 1))
    states = [oracle.PROMPT] * prompt + draw(
        st.lists(st.sampled_from([oracle.MASKED, oracle.FILLED]), min_size=size - prompt, max_size=size - prompt)
    )
    tokens = [MASK if s == oracle.MASKED else draw(st.integers(0, 8)) for s in states]
    b = oracle.Block(start=8, tokens=tokens, state=states)
    b.force_steps = draw(st.integers(0, 6))
    b.given_steps = draw(st.sampled_from([None, 1, 2, 3]))
    b.post_steps = draw(st.integers(0, 3))
    b.remasked = {i for i in b.filled if draw(st.booleans())}
    return b


@st.composite
def parameters(draw: st.DrawFn, algorithm: str) -> oracle.Params:
    level = st.sampled_from([0.0, 0.1, 0.2, 0.4, 0.9, 1.0])
    return oracle.Params(
        max_tokens=1,
        algorithm=algorithm,
        accept_threshold=draw(level),
        edit_threshold=draw(level),
        remask_threshold=draw(level) if algorithm == "threshold" else 0.0,
        max_post_edit_steps=draw(st.integers(0, 3)),
        max_steps_per_block=draw(st.integers(1, 8)),
        steps=draw(st.integers(1, 6)),
        confidence_metric=draw(st.sampled_from(["max_prob", "margin", "neg_entropy"])),
        factor=draw(st.sampled_from([0.0, 0.5, 1.0, 1.7, 2.5])),
        entropy_bound=draw(st.sampled_from([0.0, 1.0, 2.5, 4.0, 100.0])),
        low_threshold=draw(level),
        local_leap_anchor=draw(level),
        local_leap_neighbor=draw(level),
        local_leap_radius=draw(st.integers(0, 4)),
    )


def values(rule: Rule, p: oracle.Params) -> dict[str, Any]:
    return {field.name: getattr(p, field.name.replace(".", "_")) for field in rule.fields}


def param_row(rule: Rule, p: oracle.Params) -> list[float]:
    return [p.temperature, p.top_p, p.top_k, *rule.row(values(rule, p))]


@pytest.mark.parametrize("algorithm", [*FILLING, "edit"])
@given(data=st.data())
def test_a_rule_decides_as_the_oracle(algorithm: str, data: st.DataObject) -> None:
    """A batch of blocks of one size, each with parameters of its own, against one block at a time."""
    rule = get_rule(algorithm)
    size, n = SHAPE.block, data.draw(st.integers(1, 4))
    several = [data.draw(blocks(size)) for _ in range(n)]
    params = [data.draw(parameters(algorithm)) for _ in range(n)]
    force = [data.draw(st.booleans()) for _ in range(n)]
    random = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    logits = random.choice(LEVELS, (n, size, VOCAB))
    # rows that hold the same numbers in another order would tie but for the last bit of a sum: each has its own spacing
    logits *= random.uniform(0.8, 1.2, (n, size, 1))
    states = np.array([[STATE[s] for s in b.state] for b in several])
    tokens = torch.tensor([b.tokens for b in several])

    wanted = Stat.NONE
    for p in params:
        wanted |= rule.wants(values(rule, p))
    flat = torch.from_numpy(logits.reshape(n * size, VOCAB).copy())
    ban(flat, mask_id=MASK, max_token_id=MAX_TOKEN)
    chosen = greedy(flat)
    batch = BlockBatch(
        tokens=tokens,
        masked=torch.from_numpy(states == MASKED),
        filled=torch.from_numpy(states == FILLED),
        choice=chosen.token.view(n, size),
        conf=chosen.conf.view(n, size),
        current=probability(flat, tokens.flatten()).view(n, size) if Stat.CURRENT in wanted else None,
        margin=margin(flat.softmax(1)).view(n, size) if Stat.MARGIN in wanted else None,
        entropy=entropy(flat.softmax(1)).view(n, size) if Stat.ENTROPY in wanted else None,
        remasked=torch.tensor([[i in b.remasked for i in range(size)] for b in several]),
        may_force=torch.tensor(force),
        advanced=torch.tensor([b.force_steps for b in several]),
        initial_masks=torch.tensor([len(b.free) for b in several]),
        given_steps=torch.tensor([b.given_steps or 0 for b in several]),
        post_edit_steps=torch.tensor([b.post_steps for b in several]),
        params=torch.tensor([param_row(rule, p) for p in params], dtype=torch.float64),
        columns=rule.columns,
    )
    got = rule.decide(batch)
    for i, (b, p) in enumerate(zip(several, params, strict=True)):
        expected = oracle.decide(b, logits[i], p, SHAPE, force=force[i], step=0)
        assert set(torch.nonzero(got.edited[i]).flatten().tolist()) == set(expected.edit)
        assert set(torch.nonzero(got.remasked[i]).flatten().tolist()) == expected.remask
        before = list(b.masked)
        oracle.apply(b, expected, MASK, force=force[i])
        assert torch.nonzero(got.masked[i]).flatten().tolist() == b.masked
        kept = [t for j, t in enumerate(got.tokens[i].tolist()) if j not in b.masked]
        assert kept == [t for j, t in enumerate(b.tokens) if j not in b.masked]
        if algorithm == "edit":
            assert bool(got.ended[i]) == b.ended
        if p.remask_threshold == 0 and algorithm != "edit":
            assert bool(got.ended[i]) == (not b.masked)
        assert bool(got.forced[i]) <= (force[i] and bool(before))


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
    """Rows of one batch, each with its own temperature, filters and random number."""
    rows = np.random.default_rng(seed).normal(0, 3, (n, VOCAB))
    logits = torch.from_numpy(rows)
    numbers = uniforms(np.array([seed], dtype=np.uint64), np.arange(n), np.full(n, 3))
    got = draw(
        logits,
        temperature=torch.tensor(temperature[:n], dtype=torch.float64),
        top_k=torch.tensor(top_k[:n]),
        top_p=torch.tensor(top_p[:n], dtype=torch.float64),
        uniform=torch.from_numpy(numbers),
    )
    for i, row in enumerate(rows):
        expected = choose(row, temperature[i], top_k[i], top_p[i], seed, i, 3)
        assert got.token[i] == expected.token
        assert float(got.conf[i]) == pytest.approx(expected.conf, rel=1e-9)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 2**20))
def test_uniforms_equal_the_oracles(seed: int, position: int, step: int) -> None:
    got = uniforms(np.array([seed], dtype=np.uint64), np.array([position]), np.array([step]))
    assert got.tolist() == [uniform(seed, position, step)]


def test_ties() -> None:
    """Equal logits: the lowest id; equal confidences: the lowest position; top-k among equals: the lowest ids."""
    flat = torch.zeros(2, VOCAB, dtype=torch.float64)
    assert greedy(flat).token.tolist() == [0, 0]
    one = torch.ones(4, dtype=torch.float64)
    picked = draw(
        torch.zeros(4, VOCAB, dtype=torch.float64),
        temperature=one,
        top_k=torch.full((4,), 3),
        top_p=one,
        uniform=torch.tensor([0.0, 0.34, 0.67, 0.999], dtype=torch.float64),
    )
    assert picked.token.tolist() == [0, 1, 2, 2]
    assert np.flatnonzero(filtered(np.zeros(VOCAB), 3, 1.0)).tolist() == [0, 1, 2]


def test_probabilities_stay_in_the_logits_precision() -> None:
    logits = torch.randn(6, 50, dtype=torch.float32)
    got = greedy(logits)
    assert got.conf.dtype == torch.float32
    expected = [softmax(row.double().numpy()).max() for row in logits]
    torch.testing.assert_close(got.conf.double(), torch.tensor(expected), atol=1e-6, rtol=1e-5)


def test_registry() -> None:
    assert set(rules()) <= {*FILLING, "edit"}, "a rule without an oracle"
    with pytest.raises(ConfigError, match="'nope' is not known"):
        get_rule("nope")
    with pytest.raises(ValueError, match="twice"):
        register_rule(type(get_rule("edit")))

    class Odd(Rule):
        key = "odd"
        fields = (Field(name="steps", help="not a number of steps", default=0.5),)

    with pytest.raises(ValueError, match="'steps' is of another kind"):
        register_rule(Odd)


def test_only_the_vocabulary_of_rows_that_limit_it_is_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_rows: list[int] = []
    kept = choosing._kept

    def counted(scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
        sorted_rows.append(len(scaled))
        return kept(scaled, top_k, top_p)

    monkeypatch.setattr(choosing, "_kept", counted)
    logits = torch.randn(8, VOCAB, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    common = {"temperature": torch.ones(8, dtype=torch.float64), "uniform": torch.full((8,), 0.9, dtype=torch.float64)}
    off = {"top_k": torch.zeros(8, dtype=torch.int64), "top_p": torch.ones(8, dtype=torch.float64)}
    free = draw(logits, **common, **off)
    assert sorted_rows == []
    one = draw(logits, **common, **off | {"top_k": torch.tensor([0, 0, 0, 1, 0, 0, 0, 0])})
    assert sorted_rows == [1]
    assert one.token[3] == logits[3].argmax()
    others = torch.arange(8) != 3
    assert torch.equal(one.token[others], free.token[others])
    assert torch.equal(one.conf[others], free.conf[others])
