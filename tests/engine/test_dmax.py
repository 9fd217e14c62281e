"""Tests of dmax in addition to test_oracle.py and test_invariants.py.

They cover soft embeddings, cached K/V, which depends only on token ids, and real weights against the oracle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime import LLM
from runtime.scheduling.step_plan import UNMASKED, StepPlan
from tests.engine.harness import Ask, Run, Setup, run_schedule, spec_of
from tests.engine.samples import asks
from tests.examples import examples
from tests.golden import GOLDEN
from tests.oracle.block import Params
from tests.oracle.dmax import decode_dmax
from tests.oracle.model import OracleModel

SLOW = Params(
    max_tokens=21, ignore_eos=True, algorithm="dmax", accept_threshold=0.9, token_merge_top_k=3, max_steps_per_block=8
)
SERVER = Setup(strategy="dmax", block=8, buffer=2, page=8, pages=8, max_len=40)
SMOOTH = replace(SLOW, token_merge_mode="iter_smooth_topk", token_merge_weight=0.5, token_merge_top_k=1)


class Watched(Run):
    """Records the plan of each step."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.plans: list[StepPlan] = []
        launch = self.engine.runner.launch_forward

        def watched(plan: StepPlan) -> None:
            self.plans.append(plan)
            launch(plan)

        self.engine.runner.launch_forward = watched  # type: ignore[method-assign]


@pytest.mark.parametrize(("p", "buffer"), [pytest.param(SLOW, 1, marks=pytest.mark.matrix), (SMOOTH, 2)])
def test_preemption_at_any_step_changes_nothing(p: Params, buffer: int) -> None:
    steps = 0
    while True:
        run = Run(replace(SERVER, buffer=buffer))
        run.add(Ask((1, 2, 4), p))
        (request,) = run.engine.scheduler.waiting
        for _ in range(steps):
            run.step()
        if request.finished:
            break
        mixtures = [block.soft_tokens for block in request.blocks]
        if steps:
            run.engine.scheduler._preempt(request)
            assert [block.soft_tokens for block in request.blocks] == mixtures
        run.drain()
        run.compare()
        steps += 1
    assert steps > 6


def test_rows_with_soft_embeddings() -> None:
    """These are the UNMASKED positions of open blocks after their first step, with the tokens of their last step.

    A step without such positions has no soft embeddings.
    """
    run = Watched(replace(SERVER, pages=40, budget=256))
    for n, p in enumerate((SLOW, SMOOTH, replace(SLOW, token_merge_top_k=2, token_merge_renormalize=False))):
        run.add(Ask(tuple(range(n, n + 9)), p))
    requests = list(run.engine.scheduler.waiting)
    seen = 0
    while run.engine.has_work():
        before = {
            request.arrival_index: [(b.start, b.size, b.soft_tokens, request.state.copy()) for b in request.blocks]
            for request in requests
        }
        run.step()
        merged = run.plans[-1].soft_embeddings
        expected = sorted(
            (start + i, *mixture[0][i, :1], mixture[1][i, 0])
            for request in requests
            for start, size, mixture, state in before[request.arrival_index]
            if mixture is not None
            for i in range(size)
            if state[start + i] == UNMASKED
        )
        if merged is None:
            assert not expected
            continue
        seen += 1
        plan = run.plans[-1]
        assert (
            sorted(zip(plan.layout.positions[merged.rows], merged.ids[:, 0], merged.probs[:, 0], strict=True))
            == expected
        )
        assert set(map(tuple, merged.params.tolist())) <= {(0, 1, 1), (1, 0.5, 1), (0, 1, 0)}
        assert not (merged.probs[merged.params[:, 0] == 1, 1:]).any()
        assert not (merged.probs[merged.params[:, 2] == 0, 2:]).any()
    assert seen > 6
    run.drain()
    run.compare()


def test_other_rows_of_a_step_have_no_soft_embeddings() -> None:
    """These are the rows of a prompt in the same forward, and a step with only the first forward of a block."""
    run = Watched(replace(SERVER, pages=20, prefix_caching=False))
    run.add(Ask((1, 2, 4), SLOW))
    run.step()
    assert run.plans[-1].soft_embeddings is None
    run.step()
    run.add(Ask(tuple(range(18)), SLOW))
    run.step()
    plan = run.plans[-1]
    assert plan.soft_embeddings is not None
    assert set(plan.soft_embeddings.rows) < set(range(16))
    assert len(plan.tokens) > 16
    run.drain()
    run.compare()


def test_cached_kv_depends_only_on_token_ids() -> None:
    """A block that was denoised with soft embeddings is committed with ordinary ones. `Run` checks each step."""
    setup = replace(SERVER, page=4, block=4, pages=40)
    run = Run(setup)
    first = run.add(Ask((1, 2, 4, 5, 6), SLOW))
    run.drain()
    prompt = (1, 2, 4, 5, 6, *run.received[first].tokens)
    second = run.add(Ask((*prompt, 7), replace(SLOW, max_tokens=6)))
    run.drain()
    assert run.received[second].outputs[-1].cached_tokens == 24
    run.compare()


def test_embeddings_matter() -> None:
    """Each field changes the answer, because another embedding changes all logits of the hash model."""
    outputs = set()
    changes = [{}, {"token_merge_top_k": 2}, {"token_merge_renormalize": False}, {"token_merge_weight": 0.25}]
    changes += [{"token_merge_mode": "iter_smooth_topk", "token_merge_weight": weight} for weight in (0.0, 0.25, 1.0)]
    for change in changes:
        run = Run(SERVER)
        id = run.add(Ask((1, 2, 4), replace(SLOW, **change)))
        run.drain()
        run.compare()
        outputs.add(tuple(run.received[id].tokens))
    assert len(outputs) == len(changes) - 1, "token_merge_weight changed dmax_topk, or another field changed nothing"


REAL = Setup(
    strategy="dmax", vocab=224, mask=223, max_token=223, eos=(21, 190), block=8, buffer=3, page=16, pages=9, budget=40,
    max_len=64,
)  # fmt: skip


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(
        str(GOLDEN / "dmax"), device="cpu", dtype="float64", skip_tokenizer=True, decoding_strategy="dmax",
        sampling_mode="edit", block_size=8, buffer_size=3, page_size=16, num_pages=9, max_model_len=64,
        max_num_batched_tokens=40, eos_token_ids=[21, 190],
    ) as llm:  # fmt: skip
        yield llm


@pytest.fixture(scope="module")
def oracle() -> OracleModel:
    return OracleModel.load(GOLDEN / "dmax", block=8)


@examples(12)
@given(data=st.data())
def test_real_weights_in_any_schedule(llm: LLM, oracle: OracleModel, data: st.DataObject) -> None:
    """All examples use one engine, so its prefix cache persists between them.

    Blocks have few steps, because soft embeddings pass rounding errors on to the next step, several times larger.
    """
    drawn = data.draw(st.lists(st.tuples(st.integers(0, 8), asks(REAL)), min_size=1, max_size=4))
    few = [replace(a.params, max_steps_per_block=min(a.params.max_steps_per_block, 4)) for _, a in drawn]
    arrivals = [(at, replace(ask, params=p)) for (at, ask), p in zip(drawn, few, strict=True)]
    preemptions = data.draw(st.lists(st.integers(1, 15), max_size=3))
    run_schedule(Run(REAL, llm.engine, embedded=oracle), arrivals, (), preemptions)


def test_real_answers_take_several_tokens_a_step_and_end_in_both_ways(oracle: OracleModel) -> None:
    random = np.random.default_rng(2)
    p = Params(max_tokens=24, algorithm="dmax", accept_threshold=0.5, max_steps_per_block=8)
    shape = replace(REAL.oracle, eos_ids=frozenset([21]))
    results = [decode_dmax(oracle, random.integers(0, 223, 7).tolist(), p, shape) for _ in range(8)]
    assert any(len(r.tokens) >= 2 * r.nfe for r in results)
    assert {r.finish_reason for r in results} == {"stop", "length"}


def test_committed_kv_is_a_fresh_prefills(llm: LLM) -> None:
    """With real weights, the commit of a block writes the same K/V as a prompt of the same tokens.

    See docs/research/decoding-rules.md#invariant-3-cached-keys-and-values.
    """
    engine, prompt = llm.engine, (5, 9, 2, 40, 77, 1, 8)
    new_tokens = []
    for id, ask in (("denoised", Ask(prompt, replace(SLOW, max_tokens=25))), ("prefilled", None)):
        tokens = prompt if ask else (*prompt, *new_tokens)
        engine.add(spec_of(id, ask or Ask((*tokens, 3), replace(SLOW, max_tokens=1), salt="fresh")))
        while engine.has_work():
            for output in engine.step():
                new_tokens += output.new_tokens if ask else []
    tokens = np.array([*prompt, *new_tokens])
    written = []
    for salt in ("", "fresh"):
        chain: list[bytes] = []
        engine.cache.extend_page_group_hashes(chain, engine.lora_manager.cache_salt("", salt), tokens, len(tokens))
        page_groups = engine.cache.find_longest_prefix(chain)
        assert len(page_groups) == 2
        written.append(torch.stack([tensor[:, page_groups].flatten(1, 2) for tensor in engine.runner.pool.tensors]))
    torch.testing.assert_close(*written, atol=1e-10, rtol=1e-10)
