"""Tests of LLaDA2 with dmax: published block states, defaults, and refused flags and fields.

test_llama_like.py has its golden answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from runtime import LLM, SamplingParams
from runtime.errors import ConfigError, RequestError
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
    """All cases run in one batch, with different numbers of merged tokens.

    Two further requests sample, one of them with `iter_smooth_topk`.
    """
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
        "add_block_threshold": 0.1,
        "semi_complete_threshold": 0.9,
        "token_stability_threshold": 0.0,
        "accept_threshold": 0.5,
        "token_merge_mode": "dmax_topk",
        "token_merge_top_k": 1,
        "token_merge_renormalize": True,
        "token_merge_weight": 1.0,
        "max_steps_per_block": 8,
        "suppress_eos": "none",
    }


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


def test_other_strategies_have_neither_the_algorithm_nor_its_fields() -> None:
    with load(sampling_mode="edit") as llm:
        assert "dmax" not in [rule.key for rule in llm.info.algorithms]
        for decoding in ({"algorithm": "dmax"}, {"token_merge_top_k": 2}):
            with pytest.raises(RequestError, match=r"not an unmasking algorithm|is no decoding field"):
                llm.generate([[1, 2]], SamplingParams(decoding=decoding))


@pytest.mark.parametrize(
    ("folder", "flags", "says"),
    [
        ("dmax", {"decoding_strategy": "dmax"}, "--decoding-strategy dmax needs --sampling-mode edit"),
        ("sdar", {"decoding_strategy": "dmax"}, "does not fit this model; use one of multi_bd"),
        ("dmax", {"token_merge_top_k": 2}, "--token-merge-top-k is not supported by multi_bd of the llada2 family"),
        ("dmax", {**DMAX, "edit_threshold": 0.1}, "--edit-threshold is not supported by dmax of the llada2 family"),
        ("dmax", {**DMAX, "token_merge_top_k": 65}, "--token-merge-top-k: 65 is not"),
        ("dmax", {**DMAX, "token_merge_weight": -1}, "--token-merge-weight: -1 is not"),
        ("dmax", {**DMAX, "token_merge_mode": "topk"}, "--token-merge-mode: 'topk' is not one of"),
    ],
)
def test_flags_that_cannot_be_honoured(folder: str, flags: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(folder, **flags)


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"decoding": {"algorithm": "edit"}}, "decoding.algorithm", "is not an unmasking algorithm of this server"),
        ({"decoding": {"mode": "speed"}}, "decoding.mode", "has no meaning with the dmax algorithm; leave it out"),
        ({"num_denoising_steps": 5}, "num_denoising_steps", "has no meaning with the dmax algorithm; leave it out"),
        ({"confidence_metric": "margin"}, "confidence_metric", "has no meaning with the dmax algorithm; leave it out"),
        ({"decoding": {"token_merge_top_k": 0}}, "decoding.token_merge_top_k", "0 is out of range"),
        ({"decoding": {"token_merge_weight": 0.5}}, "decoding.token_merge_weight",
         "has no meaning with token_merge_mode dmax_topk, only with iter_smooth_topk; leave it out"),
        ({"decoding": {"token_merge_mode": "iter_smooth_topk", "token_merge_renormalize": False}},
         "decoding.token_merge_renormalize", "has no meaning with token_merge_mode iter_smooth_topk"),
    ],
)  # fmt: skip
def test_wrong_values_are_one_clear_400(llm: LLM, fields: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4, **fields))
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_field_with_its_default_is_accepted(llm: LLM) -> None:
    merge_fields = {"token_merge_mode": "iter_smooth_topk", "token_merge_renormalize": True}
    llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4, decoding=merge_fields))
