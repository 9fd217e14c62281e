"""Tests of the types of zod and pydantic: their schemas compile, and answers of the demo model match them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from runtime import LLM, SamplingParams
from runtime.errors import RequestError
from tests.structured_output.client_types import DISTINCT, EVERY

CHAT = [{"role": "user", "content": "Anna, 34, lives in Rome. Write this as JSON."}]
TOKENS = 96


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(device="cpu", max_num_reqs=64) as llm:
        yield llm


def check_answers(llm: LLM, seeds: range, step: int = 1) -> None:
    asked = [(name, schema, seed) for name, schema in list(EVERY.items())[::step] for seed in seeds]
    params = [
        SamplingParams(max_tokens=TOKENS, structured_outputs={"json": schema}, seed=seed, temperature=0.8)
        for _, schema, seed in asked
    ]
    ended: dict[str, int] = dict.fromkeys(EVERY, 0)
    for (name, schema, _), out in zip(asked, llm.generate([CHAT] * len(asked), params), strict=True):
        assert out.finish_reason in ("stop", "length")
        if out.finish_reason == "stop":
            ended[name] += 1
            value = json.loads(out.text or "")
            assert jsonschema_rs.validator_for(schema).is_valid(value), (name, schema, value)
    assert sum(ended.values()) > len(asked) / 2


def test_answers_fit_types_of_the_clients(llm: LLM) -> None:
    check_answers(llm, range(1), step=5)


@pytest.mark.matrix
def test_answers_fit_every_type_of_the_clients(llm: LLM) -> None:
    check_answers(llm, range(1))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_answers_fit_every_type_of_the_clients_with_many_seeds(llm: LLM, seed: int) -> None:
    check_answers(llm, range(seed, seed + 1))


@pytest.mark.parametrize("name", DISTINCT)
def test_items_that_may_not_repeat_are_refused_by_name(llm: LLM, name: str) -> None:
    with pytest.raises(RequestError, match=r"properties\.field\.uniqueItems: true is not supported"):
        llm.generate([CHAT], SamplingParams(structured_outputs={"json": DISTINCT[name]}))


def test_alternatives_that_may_overlap_name_the_ways_out(llm: LLM) -> None:
    schema: dict[str, Any] = {"properties": {"a": {"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]}}}
    with pytest.raises(RequestError, match=r"properties\.a\.oneOf: .*coerce_one_of.* at the top of the schema"):
        llm.generate([CHAT], SamplingParams(structured_outputs={"json": schema}))
    schema["x-guidance"] = {"coerce_one_of": True}
    params = SamplingParams(max_tokens=TOKENS, structured_outputs={"json": schema})
    assert llm.generate([CHAT], params)[0].finish_reason in ("stop", "length")
