"""Tests of LLaDA2 with dmax: published block states, and defaults."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from runtime import LLM, SamplingParams
from tests.golden import GOLDEN

CASES = [c for c in json.loads((GOLDEN / "dmax" / "cases.json").read_text()) if c["kind"] == "decode"]
DMAX = {"decoding_strategy": "dmax", "sampling_mode": "edit", "block_size": 8}


def load(folder: str = "dmax", **flags: Any) -> LLM:
    return LLM(str(GOLDEN / folder), device="cpu", skip_tokenizer=True, **flags)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with load(**DMAX) as llm:
        yield llm


def settings(case: dict[str, Any]) -> dict[str, Any]:
    names = ("accept_threshold", "token_merge_mode", "token_merge_top_k", "token_merge_renormalize")
    return {name: case["settings"][name] for name in names}


def sampling(case: dict[str, Any], **fields: Any) -> SamplingParams:
    fields = {"max_tokens": case["settings"]["max_tokens"], "temperature": 0, "ignore_eos": True} | fields
    return SamplingParams(**({"decoding": settings(case)} | fields))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_golden_states(llm: LLM, case: dict[str, Any]) -> None:
    *events, final = llm.stream(case["prompt_ids"], sampling(case))
    assert [(event["start"], event["tokens"]) for event in events] == [(s["start"], s["ids"]) for s in case["states"]]
    for event, state in zip(events, case["states"], strict=True):
        assert [event["tokens"][i] for i in event["masked"]] == [223] * state["ids"].count(223)
    assert (final["token_ids"], final["nfe"]) == (case["ids_ignore_eos"], case["nfe_ignore_eos"])


def test_golden_answers_in_one_batch(llm: LLM) -> None:
    prompts, asked = [case["prompt_ids"] for case in CASES], [sampling(case, ignore_eos=False) for case in CASES]
    others = [{"token_merge_mode": "iter_smooth_topk", "token_merge_weight": 0.3}, {"token_merge_top_k": 64}]
    companions = [SamplingParams(max_tokens=24, temperature=1.0, seed=n, decoding=d) for n, d in enumerate(others)]
    outs = llm.generate([*prompts, *prompts[:2]], [*asked, *companions])
    for case, out in zip(CASES, outs[: len(CASES)], strict=True):
        assert (out.token_ids, out.nfe, out.finish_reason) == (case["ids"], case["nfe"], case["finish_reason"])


def test_defaults_of_the_strategy(llm: LLM) -> None:
    info = llm.info
    assert (info.strategy, info.default_algorithm, info.buffer_size, info.prefix_caching) == ("dmax", "dmax", 1, True)
    assert [rule.key for rule in info.algorithms] == ["dmax"]
    assert info.defaults().values == {
        "add_block_threshold": 0.1, "semi_complete_threshold": 0.9, "token_stability_threshold": 0.0,
        "accept_threshold": 0.5, "token_merge_mode": "dmax_topk", "token_merge_top_k": 1,
        "token_merge_renormalize": True, "token_merge_weight": 1.0, "max_steps_per_block": 8, "suppress_eos": "none",
    }  # fmt: skip


def test_flags_are_the_defaults_of_its_fields() -> None:
    case = CASES[-1]
    assert case["settings"]["token_merge_top_k"] == 3
    with load(**DMAX, **settings(case)) as llm:
        (out,) = llm.generate([case["prompt_ids"]], sampling(case, decoding=None))
        assert (out.token_ids, out.nfe) == (case["ids_ignore_eos"], case["nfe_ignore_eos"])
    flags = {"token_merge_mode": "iter_smooth_topk", "token_merge_weight": 2.5, "token_merge_renormalize": False}
    with load(**DMAX, **flags) as llm:
        values = llm.info.defaults().values
        assert {name: values[name] for name in flags} == flags
