"""Tests of real weights in float64, loaded through the Python API, against the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from tests.oracle.model import OracleModel
from tests.oracle.tiny import ARCHITECTURES, write_tiny


@dataclass(frozen=True)
class Case:
    setup: Setup
    directory: Path
    oracle: OracleModel

    def load(self, **changes: object) -> LLM:
        s = self.setup
        flags = {
            "device": "cpu",
            "dtype": "float64",
            "skip_tokenizer": True,
            "block_size": s.block,
            "buffer_size": s.buffer,
            "page_size": s.page,
            "num_pages": s.pages,
            "max_model_len": s.max_len,
            "max_num_reqs": s.max_reqs,
            "max_num_batched_tokens": s.budget,
            "eos_token_ids": list(s.eos),
        }
        return LLM(str(self.directory), **(flags | changes))


TINY = Setup(vocab=32, mask=31, max_token=31, eos=(3, 11, 19), max_len=48)
SETUPS = {
    "grouped_moe": replace(TINY, block=4, buffer=2, page=8, pages=10, budget=12),
    "dense_tied": replace(TINY, block=8, buffer=4, page=4, pages=20, budget=40),
    "all_moe": replace(TINY, block=4, buffer=1, page=4, pages=200, budget=256),
    # frequent tokens of the golden model are its EOS tokens here
    "golden": Setup(
        vocab=256,
        mask=255,
        max_token=255,
        eos=(254, 62, 124, 173),
        block=8,
        buffer=3,
        page=16,
        pages=8,
        budget=40,
        max_len=64,
    ),
}

ABORTS = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 3)), max_size=1)


@pytest.fixture(scope="module", params=sorted(SETUPS))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    setup = SETUPS[request.param]
    if request.param == "golden":
        directory = GOLDEN / "llada2_tiny"
    else:
        directory = tmp_path_factory.mktemp("tiny")
        write_tiny(directory, seed=7, sharpness=1.3, block=setup.block, eos=setup.eos, **ARCHITECTURES[request.param])
    return Case(setup, directory, OracleModel.load(directory, block=setup.block))


@pytest.fixture(scope="module")
def llm(case: Case) -> Iterator[LLM]:
    with case.load() as llm:
        yield llm


def test_engine_info(case: Case, llm: LLM) -> None:
    s, info = case.setup, llm.info
    assert (info.vocab_size, info.mask_token_id, info.max_token_id) == (s.vocab, s.mask, s.max_token)
    assert set(info.eos_token_ids) == set(s.eos)
    assert (info.block_size, info.page_size, info.num_pages) == (s.block, s.page, s.pages)


def test_logits(case: Case, llm: LLM) -> None:
    ids = np.random.default_rng(0).integers(0, case.setup.vocab, 37).tolist()
    torch.testing.assert_close(llm.logits(ids).double(), case.oracle.logits(ids), atol=1e-9, rtol=1e-9)


@pytest.fixture(scope="module")
def distinct(case: Case) -> Iterator[LLM]:
    with case.load(kv_cache_layout="distinct") as llm:
        assert isinstance(llm.engine.runner, ModelRunner)
        assert isinstance(llm.engine.runner.pool, DistinctPool)
        yield llm


def test_logits_of_a_distinct_pool(case: Case, llm: LLM, distinct: LLM) -> None:
    ids = np.random.default_rng(1).integers(0, case.setup.vocab, 37).tolist()
    torch.testing.assert_close(distinct.logits(ids), llm.logits(ids), atol=1e-12, rtol=1e-12)


@examples(6)
@given(data=st.data())
def test_any_schedule_over_a_distinct_pool(case: Case, distinct: LLM, data: st.DataObject) -> None:
    """Prefix hits, preemptions, chunks and aborts. The oracle is that of the unified pool."""
    setup = case.setup
    arrivals = data.draw(st.lists(st.tuples(st.integers(0, 8), asks(setup)), min_size=1, max_size=4))
    run_schedule(Run(setup, distinct.engine, case.oracle), arrivals, data.draw(ABORTS))


@examples(8)
@given(data=st.data())
def test_any_schedule(case: Case, llm: LLM, data: st.DataObject) -> None:
    """All examples use one engine, so its prefix cache persists between them."""
    setup = case.setup
    arrivals = data.draw(st.lists(st.tuples(st.integers(0, 8), asks(setup)), min_size=1, max_size=4))
    run_schedule(Run(setup, llm.engine, case.oracle), arrivals, data.draw(ABORTS))


def params_of_kinds(case: Case) -> list[Params]:
    """Returns parameters of each kind. Some of the model's confidences are above `sure`, but most are not."""
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
    return SamplingParams(
        max_tokens=p.max_tokens,
        temperature=p.temperature,
        top_p=p.top_p,
        top_k=p.top_k,
        seed=p.seed,
        ignore_eos=p.ignore_eos,
        max_nfe=p.max_nfe,
        max_repetition_run=p.max_repetition_run,
        decoding={"algorithm": p.algorithm, **nested(decoding_of(p))},
    )


def test_generate_and_stream(case: Case, llm: LLM) -> None:
    random = np.random.default_rng(1)
    kinds = params_of_kinds(case)
    lengths = (5, 8, 16, 1, 11, 2, 9, 13, 4, 12, 7, 6, 3)
    prompts = [random.integers(0, case.setup.vocab - 1, n).tolist() for n in lengths[: len(kinds)]]
    outs = llm.generate(prompts, [sampling(p) for p in kinds])
    for prompt, p, out in zip(prompts, kinds, outs, strict=True):
        result = decode(case.oracle, prompt, p, case.setup.oracle)
        assert (out.token_ids, out.nfe, out.finish_reason) == (result.tokens, result.nfe, result.finish_reason)
        *events, final = llm.stream(prompt, sampling(p))
        shown = [(e["start"], e["tokens"], e["masked"], e["nfe"]) for e in events]
        assert shown == [(e.start, e.tokens, e.masked, e.nfe) for e in result.events]
        assert final["token_ids"] == result.tokens


@pytest.mark.all_entries  # with fewer algorithms there are fewer cases
def test_the_cases_are_worth_comparing(case: Case) -> None:
    """In the first four kinds, steps unmask several positions, and answers end with `stop` and with `length`."""
    random = np.random.default_rng(2)
    results = [
        decode(case.oracle, random.integers(0, case.setup.vocab - 1, 7).tolist(), replace(p, seed=n), case.setup.oracle)
        for n, p in enumerate(2 * params_of_kinds(case)[:4])
    ]
    assert any(len(r.tokens) >= 2 * r.nfe for r in results)
    assert any(r.finish_reason == "stop" for r in results)
    assert any(r.finish_reason == "length" for r in results)


def cached_kv(llm: LLM, tokens: list[int]) -> torch.Tensor:
    """Returns the K/V of `tokens` in the prefix cache, [2, layers, positions, heads, dim]."""
    engine = llm.engine
    while engine.has_work():  # the last block's commit
        engine.step()
    cache = engine.cache
    chain: list[bytes] = []
    cache.extend_page_group_hashes(
        chain, engine.lora_manager.cache_salt("", ""), np.array(tokens, dtype=np.int64), len(tokens)
    )
    page_groups = cache.find_longest_prefix(chain)
    pool = engine.runner.pool
    pages = [page_group * cache.pages_per_group + i for page_group in page_groups for i in range(cache.pages_per_group)]
    return torch.stack([tensor[:, pages].flatten(1, 2) for tensor in pool.tensors])


@pytest.mark.parametrize("algorithm", ["threshold", "edit"])
def test_committed_kv_is_a_fresh_prefills(case: Case, algorithm: str) -> None:
    """A block that is denoised, and committed in a step of the next one, has the K/V of the same tokens in a prompt."""
    p = Params(max_tokens=24, ignore_eos=True, algorithm=algorithm, accept_threshold=0.1, edit_threshold=0.1)
    prompt = [t % case.setup.vocab for t in (5, 9, 2, 40, 77, 1, 8)]
    with case.load() as one, case.load() as two:
        (out,) = one.generate([prompt], sampling(p))
        tokens = prompt + out.token_ids
        two.generate([tokens], SamplingParams(max_tokens=1))
        mine, fresh = cached_kv(one, tokens), cached_kv(two, tokens)
        assert mine.shape[2] >= 16
        torch.testing.assert_close(mine, fresh[:, :, : mine.shape[2]], atol=1e-10, rtol=1e-10)
