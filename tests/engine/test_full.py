"""Tests of `full`: the rows that each cache mode forwards, the cost of a preemption, and models that use it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file

from runtime import LLM, SamplingParams
from runtime.scheduling.request import ScheduledRequest
from tests.engine.harness import Ask, Run, Setup, check_idle
from tests.golden import GOLDEN
from tests.oracle.block import Params

SERVER = Setup(strategy="full", max_len=96, budget=96, page=4, pages=24)
ONE_A_STEP = Params(max_tokens=60, block_length=20, accept_threshold=1.0, ignore_eos=True)
PROMPT = tuple(range(10))
CHEAP = {"device": "cpu", "skip_tokenizer": True, "dtype": "float64"}


class Watched(Run):
    """Records the scheduled requests as (request number, first row, end of the rows, number of sampled blocks)."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.entries: list[tuple[int, int, int, int]] = []
        schedule = self.engine.scheduler.schedule

        def watched() -> list[ScheduledRequest]:
            entries = schedule()
            for t in entries:
                self.entries.append((t.request.arrival_index, t.start, t.end, len(t.span.blocks) if t.span else 0))
            return entries

        self.engine.scheduler.schedule = watched  # type: ignore[method-assign]


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize(
    ("cache", "rows"),
    [
        ("none", [(0, 70)] * 3),
        ("prefix", [(10, 70), (30, 70), (50, 70)]),
        ("dual", [(10, 30), (30, 50), (50, 70)]),
        ("vicinity", [(0, 46), (14, 66), (34, 70)]),
    ],
)
def test_forwarded_rows_of_each_cache_mode(cache: str, rows: list[tuple[int, int]], shift: bool) -> None:
    """The first step of a block forwards the canvas, later ones the rows of the mode. Each forward is a step."""
    run = Watched(replace(SERVER, shift=shift))
    run.finish(Ask(PROMPT, replace(ONE_A_STEP, cache=cache)))
    assert run.received["r0"].outputs[-1].nfe == 60
    assert run.entries == [entry for part in rows for entry in [(0, 0, 70, 1), *[(0, *part, 1)] * 19]]
    stats = run.engine.stats()
    assert (stats.forwards_denoise, stats.forwards_prefill, stats.forwards_commit) == (60, 0, 0)


@pytest.mark.parametrize(("cache", "shift"), [("none", False), ("prefix", True), ("dual", False), ("vicinity", True)])
def test_a_preempted_request_recomputes_its_canvas_and_continues(cache: str, shift: bool) -> None:
    """Two requests of one group leave too few pages for another group. One is preempted, and its answer is the same."""
    setup = replace(SERVER, shift=shift, pages=36, max_reqs=4)
    run = Watched(setup)
    for _ in range(2):
        run.add(Ask(PROMPT, replace(ONE_A_STEP, cache=cache), group="crowd"))
    for _ in range(7):
        run.step()
    run.finish(Ask(PROMPT[:3], Params(max_tokens=5, accept_threshold=1.0, ignore_eos=True), group="single"))
    assert run.engine.scheduler.preemptions == 1
    again = [entry for entry in run.entries if not entry[3]]
    assert again == ([] if cache == "none" else [(1, 0, 70, 0)])
    assert run.engine.stats().forwards_prefill == len(again)
    assert [o.nfe for o in run.received["r1"].outputs] == list(range(1, 61))


def test_a_canvas_waits_for_all_its_pages_and_is_not_overtaken() -> None:
    setup = replace(SERVER, pages=24)
    run = Watched(setup)
    for length in (60, 60, 2):
        run.add(Ask(PROMPT, replace(ONE_A_STEP, max_tokens=length)))
    run.step()
    assert [r.arrival_index for r in run.engine.scheduler.running] == [0]
    run.finish()
    served = [entry[0] for entry in run.entries]
    assert sorted(range(3), key=served.index) == [0, 1, 2]
    check_idle(run.engine)


def test_canvases_alternate_when_the_budget_is_one_canvas() -> None:
    """Large and small canvases run together. Between two steps of one, no other makes more than two."""
    run = Watched(replace(SERVER, pages=100))
    run.finish(*(Ask(PROMPT, replace(ONE_A_STEP, max_tokens=length)) for length in (80, 30, 50, 20)))
    for own in range(4):
        at = [n for n, entry in enumerate(run.entries) if entry[0] == own]
        for a, b in pairwise(at):
            between = [entry[0] for entry in run.entries[a + 1 : b]]
            assert all(between.count(other) <= 2 for other in between)


@pytest.fixture(scope="module")
def llada() -> Iterator[LLM]:
    with LLM(str(GOLDEN / "llada"), block_size=8, **CHEAP) as llm:
        yield llm


def ask(llm: LLM, **fields: object) -> tuple[list[int], int]:
    fields = {"max_tokens": 24, "ignore_eos": True} | fields
    (out,) = llm.generate([[5, 6, 7, 8, 9, 10, 11, 12, 13]], SamplingParams(**fields))  # type: ignore[arg-type]
    return out.token_ids, out.nfe


def test_a_checkpoint_alone_answers(llada: LLM) -> None:
    info = llada.info
    assert (info.family, info.strategy, info.prefix_caching, info.default_max_tokens) == ("llada", "full", False, 256)
    (out,) = llada.generate([[5] * (info.max_model_len - 7)], SamplingParams(ignore_eos=True))
    assert len(out.token_ids) == 7


def test_a_checkpoint_of_dream_alone_answers_by_fixed() -> None:
    with LLM(str(GOLDEN / "dream"), **CHEAP) as dream:
        assert len(ask(dream, max_tokens=None, num_denoising_steps=8, block_length=256)[0]) == 256


@pytest.mark.parametrize("cache", ["prefix", "dual", "vicinity"])
def test_a_request_chooses_the_cache_and_the_server_the_default(llada: LLM, cache: str) -> None:
    mine = ask(llada, decoding={"cache": cache})
    with LLM(str(GOLDEN / "llada"), block_size=8, full_cache=cache, **CHEAP) as other:
        assert ask(other) == mine
        assert ask(other, decoding={"cache": "none"}) == ask(llada)


def test_a_request_chooses_the_length_of_blocks_by_fixed(llada: LLM) -> None:
    with LLM(str(GOLDEN / "llada"), block_size=12, **CHEAP) as other:
        for decoding in ({}, {"algorithm": "fixed"}, {"algorithm": "fixed", "steps": 5}, {"cache": "dual"}):
            named = ask(other, decoding=decoding)
            assert ask(llada, decoding={**decoding, "block_length": 12}) == named
            assert ask(llada, decoding=decoding, block_length=12) == named
    assert ask(llada, block_length=2**31) == ask(llada, block_length=24)


def test_blocks_of_llada_may_be_longer_than_the_model_and_lie_anywhere_in_pages_by_fixed() -> None:
    flags = {"block_size": 300, "page_size": 7, "num_pages": 37, "decoding_strategy": "full"}
    with LLM(str(GOLDEN / "llada"), **flags, **CHEAP) as llm:
        assert llm.info.max_model_len == 256
        assert len(ask(llm, max_tokens=247, num_denoising_steps=3)[0]) == 247


def test_a_total_of_steps_is_shared_out_over_the_blocks_by_fixed(llada: LLM) -> None:
    for length, total in ((8, 3), (8, 10), (8, 24), (10, 11), (24, 1)):
        assert ask(llada, block_length=length, num_denoising_steps=total)[1] == total
        assert sum(llada.engine.stats().block_steps[-(-24 // length) * -1 :]) == total


def test_of_a_total_of_steps_blocks_of_dream_take_two_at_least_by_fixed() -> None:
    with LLM(str(GOLDEN / "dream"), block_size=8, full_cache="dual", **CHEAP) as dream:
        for total in (6, 7, 20, 24):
            assert ask(dream, num_denoising_steps=total)[1] == total
        assert ask(dream, num_denoising_steps=3)[1] == 6  # each block's first position is a step of its own
        assert dream.engine.stats().block_steps[-3:] == [2, 2, 2]


def test_logits_are_those_of_the_full_canvas(llada: LLM) -> None:
    cases = json.loads((GOLDEN / "llada" / "cases.json").read_text())
    case = next(case for case in cases if case["kind"] == "logits" and case["attention"] == "full")
    expected = load_file(GOLDEN / "llada" / "expected.safetensors")
    tokens = expected[case["ids"]].flatten().tolist()
    logits = llada.logits(tokens)
    torch.testing.assert_close(logits.float(), expected[case["logits"]].view_as(logits), rtol=0, atol=5e-4)
    assert not torch.allclose(logits, llada.logits(tokens, block_size=8))
