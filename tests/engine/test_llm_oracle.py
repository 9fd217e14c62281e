"""Tests of real weights in float64, loaded through the Python API, against the oracle."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime import LLM, SamplingParams
from runtime.algorithms.base import algorithm_keys
from runtime.layers.kv_pool import DistinctPool
from runtime.worker.model_runner import ModelRunner
from tests.engine.harness import Run, Setup, decoding_of, run_schedule
from tests.engine.samples import asks
from tests.examples import examples
from tests.golden import GOLDEN
from tests.oracle.block import Params
from tests.oracle.decode import decode
from tests.oracle.dmax import decode_dmax
from tests.oracle.model import OracleModel
from tests.oracle.tiny import ARCHITECTURES, write_tiny

TINY = Setup(vocab=32, mask=31, max_token=31, eos=(3, 11, 19), max_len=48)
REAL = Setup(vocab=256, mask=255, max_token=255, eos=(254, 62, 124, 173), block=8, page=16, budget=40, max_len=64)
EDITS = replace(REAL, vocab=224, mask=223, max_token=223, eos=(222, 62, 124, 173), budget=64, orders=(16, 47))


@dataclass(frozen=True)
class Case:
    """A checkpoint and its server. Frequent tokens of golden models are their EOS tokens here."""

    setup: Setup
    golden: str | None = None  # None: a tiny architecture with random weights
    flags: dict[str, Any] = field(default_factory=dict)


CASES = {
    "grouped_moe": Case(replace(TINY, block=4, buffer=2, page=8, pages=10, budget=12)),
    "dense_tied": Case(replace(TINY, block=8, buffer=4, page=4, pages=20, budget=40)),
    "all_moe": Case(replace(TINY, block=4, buffer=1, page=4, pages=200, budget=256)),
    "golden": Case(replace(REAL, buffer=3, pages=8), "llada2_tiny"),
    "dmax": Case(replace(REAL, strategy="dmax", vocab=224, mask=223, max_token=223, eos=(21, 190), buffer=3, pages=9),
                 "dmax", {"decoding_strategy": "dmax", "sampling_mode": "edit"}),
    "llada2dot2": Case(replace(EDITS, buffer=2, page=4, pages=32), "llada2dot2"),
    "llada2dot2 with blocks of twice the size": Case(replace(EDITS, buffer=3, block=16, pages=8), "llada2dot2"),
}  # fmt: skip
Served = tuple[Case, Path, OracleModel]


@pytest.fixture(scope="module", params=CASES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    case = CASES[request.param]
    if case.golden is not None:
        directory = GOLDEN / case.golden
    else:
        directory, s = tmp_path_factory.mktemp("tiny"), case.setup
        write_tiny(directory, seed=7, sharpness=1.3, block=s.block, eos=s.eos, **ARCHITECTURES[request.param])
    return case, directory, OracleModel.load(directory, block=case.setup.block)


def load(served: Served, **changes: object) -> LLM:
    case, directory, _ = served
    s = case.setup
    return LLM(
        str(directory), device="cpu", dtype="float64", skip_tokenizer=True, block_size=s.block, buffer_size=s.buffer,
        page_size=s.page, num_pages=s.pages, max_model_len=s.max_len, max_num_reqs=s.max_reqs,
        max_num_batched_tokens=s.budget, eos_token_ids=list(s.eos), **case.flags, **changes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def llm(served: Served) -> Iterator[LLM]:
    with load(served) as llm:
        yield llm


@pytest.fixture(scope="module")
def distinct(served: Served) -> Iterator[LLM]:
    with load(served, kv_cache_layout="distinct") as llm:
        assert isinstance(llm.engine.runner, ModelRunner)
        assert isinstance(llm.engine.runner.pool, DistinctPool)
        yield llm


def test_logits_and_engine_info(served: Served, llm: LLM, distinct: LLM) -> None:
    (case, _, oracle), info = served, llm.info
    s = case.setup
    assert (info.vocab_size, info.mask_token_id, info.max_token_id) == (s.vocab, s.mask, s.max_token)
    assert (info.block_size, info.page_size, info.num_pages, set(info.eos_token_ids)) == (
        s.block, s.page, s.pages, set(s.eos),
    )  # fmt: skip
    ids = np.random.default_rng(0).integers(0, s.vocab, 37).tolist()
    torch.testing.assert_close(llm.logits(ids).double(), oracle.logits(ids), atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(distinct.logits(ids), llm.logits(ids), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("pool", ["unified", "distinct"])
@examples(7)
@given(data=st.data())
def test_any_schedule(served: Served, llm: LLM, distinct: LLM, pool: str, data: st.DataObject) -> None:
    """All examples use one engine, so its prefix cache persists between them."""
    case, _, oracle = served
    arrivals = data.draw(st.lists(st.tuples(st.integers(0, 8), asks(case.setup)), min_size=1, max_size=4))
    aborts = data.draw(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 3)), max_size=1))
    preemptions = data.draw(st.lists(st.integers(1, 40), max_size=3))
    oracles: dict[str, Any] = {"logits_of": oracle}
    if case.setup.strategy == "dmax":  # few steps: soft embeddings pass rounding errors on, several times larger
        oracles = {"embedded": oracle}
        few = [replace(ask.params, max_steps_per_block=min(ask.params.max_steps_per_block, 4)) for _, ask in arrivals]
        arrivals = [(at, replace(ask, params=p)) for (at, ask), p in zip(arrivals, few, strict=True)]
    engine = (llm if pool == "unified" else distinct).engine
    run_schedule(Run(case.setup, engine, **oracles), arrivals, aborts, preemptions)


def params_of_kinds(case: Case) -> list[Params]:
    """Returns parameters of each kind. Some of the model's confidences are above `sure`, but most are not."""
    if case.setup.orders:
        return [Params(max_tokens=20, algorithm="edit", accept_threshold=0.5, max_post_edit_steps=4)]
    if case.setup.strategy == "dmax":
        return [Params(max_tokens=24, algorithm="dmax", accept_threshold=0.5, max_steps_per_block=8)]
    sure = 0.018 if case.setup.vocab == 256 else 0.25
    kinds = [
        Params(max_tokens=20, accept_threshold=sure),
        Params(max_tokens=13, accept_threshold=sure, remask_threshold=sure / 3, ignore_eos=True),
        Params(max_tokens=17, algorithm="fixed", steps=3, temperature=0.8, top_k=5, seed=3),
        Params(max_tokens=15, algorithm="edit", accept_threshold=sure, edit_threshold=sure / 2, penalty_lambda=0.7),
        Params(max_tokens=9, temperature=1.2, top_p=0.8, seed=2**63 + 5, max_nfe=4),
        Params(max_tokens=20, accept_threshold=sure / 2, ignore_eos=True, max_repetition_run=2),
        Params(max_tokens=20, algorithm="factor", factor=1.8, confidence_metric="margin"),
        Params(max_tokens=16, algorithm="entropy_bound", entropy_bound=8.0, temperature=0.7, seed=8),
        Params(max_tokens=18, algorithm="local_leap", local_leap_anchor=sure, local_leap_neighbor=sure / 2),
        Params(max_tokens=15, algorithm="hierarchical", accept_threshold=3 * sure, low_threshold=sure),
        Params(max_tokens=14, algorithm="dynamic", accept_threshold=sure, steps=3, confidence_metric="neg_entropy"),
        Params(max_tokens=11, algorithm="sequential", steps=3, suppress_eos="confidence"),
        Params(max_tokens=19, algorithm="credit", accept_threshold=1.5 * sure, suppress_eos="logits"),
    ]
    return [p for p in kinds if p.algorithm in algorithm_keys()]


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields as in a request: `x.y` is the entry y of an object x."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        *outer, last = name.split(".")
        (out.setdefault(outer[0], {}) if outer else out)[last] = value
    return out


def sampling(p: Params) -> SamplingParams:
    names = ("max_tokens", "temperature", "top_p", "top_k", "seed", "ignore_eos", "max_nfe", "max_repetition_run")
    return SamplingParams(
        **{name: getattr(p, name) for name in names}, decoding={"algorithm": p.algorithm, **nested(decoding_of(p))}
    )


def test_generate_and_stream(served: Served, llm: LLM) -> None:
    case, _, oracle = served
    kinds, random = params_of_kinds(case), np.random.default_rng(1)
    lengths = (5, 8, 16, 1, 11, 2, 9, 13, 4, 12, 7, 6, 3)
    prompts = [random.integers(0, case.setup.vocab - 1, n).tolist() for n in lengths[: len(kinds)]]
    outs = llm.generate(prompts, [sampling(p) for p in kinds])
    naive = decode_dmax if case.setup.strategy == "dmax" else decode
    for prompt, p, out in zip(prompts, kinds, outs, strict=True):
        result = naive(oracle, prompt, p, case.setup.oracle)
        assert (out.token_ids, out.nfe, out.finish_reason) == (result.tokens, result.nfe, result.finish_reason)
        *events, final = llm.stream(prompt, sampling(p))
        shown = [(e["start"], e["tokens"], e["masked"], e["nfe"]) for e in events]
        assert shown == [(e.start, e.tokens, e.masked, e.nfe) for e in result.events]
        assert final["token_ids"] == result.tokens


@pytest.mark.all_entries  # with fewer algorithms there are fewer cases
def test_the_cases_are_worth_comparing(served: Served) -> None:
    """In the first four kinds, steps unmask several positions, and answers end with `stop` and with `length`."""
    case, _, oracle = served
    if case.setup.orders:
        pytest.skip("golden states show what steps that edit do")
    random = np.random.default_rng(2)
    naive, shape = decode, case.setup.oracle
    if case.setup.strategy == "dmax":
        naive, shape = decode_dmax, replace(shape, eos_ids=frozenset([21]))
    results = [
        naive(oracle, random.integers(0, case.setup.vocab - 1, 7).tolist(), replace(p, seed=n), shape)
        for n, p in enumerate((8 * params_of_kinds(case)[:4])[:8])
    ]
    assert any(len(r.tokens) >= 2 * r.nfe for r in results)
    assert {r.finish_reason for r in results} >= {"stop", "length"}


def cached_kv(llm: LLM, tokens: list[int], salt: str = "") -> torch.Tensor:
    """Returns the K/V of `tokens` in the prefix cache, [2, layers, positions, heads, dim]."""
    engine = llm.engine
    while engine.has_work():  # the last block's commit
        engine.step()
    cache, chain = engine.cache, list[bytes]()
    ids = np.array(tokens, dtype=np.int64)
    cache.extend_page_group_hashes(chain, engine.lora_manager.cache_salt("", salt), ids, len(tokens))
    page_groups = cache.find_longest_prefix(chain)
    pages = [page_group * cache.pages_per_group + i for page_group in page_groups for i in range(cache.pages_per_group)]
    return torch.stack([tensor[:, pages].flatten(1, 2) for tensor in engine.runner.pool.tensors])


def test_committed_kv_is_a_fresh_prefills(served: Served) -> None:
    """A block that is denoised, and committed in a step of the next one, has the K/V of the same tokens in a prompt."""
    case, *_ = served
    ask = {"max_tokens": 25, "ignore_eos": True, "temperature": 0.0}
    prompt = [t % case.setup.vocab for t in (5, 9, 2, 40, 77, 1, 8)]
    strategies = [p.algorithm for p in params_of_kinds(case) if p.algorithm in ("threshold", "edit", "dmax")]
    for algorithm in dict.fromkeys(strategies):
        with load(served) as llm:
            decoding = {"algorithm": algorithm, "accept_threshold": 0.1}
            (out,) = llm.generate([prompt], SamplingParams(**ask, decoding=decoding))
            tokens = prompt + out.token_ids
            llm.generate([tokens], SamplingParams(max_tokens=1, cache_salt="fresh"))
            mine, fresh = cached_kv(llm, tokens), cached_kv(llm, tokens, "fresh")
            assert mine.shape[2] >= 16
            torch.testing.assert_close(mine, fresh[:, :, : mine.shape[2]], atol=1e-10, rtol=1e-10)
