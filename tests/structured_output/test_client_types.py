"""Tests of the types of zod and pydantic: their schemas compile, and answers of the demo model match them."""

import json
from typing import Any

import jsonschema_rs
import pytest

from runtime import LLM, SamplingParams
from runtime.errors import RequestError
from tests.matrix import marked
from tests.structured_output.client_types import DISTINCT, EVERY

CHAT = [{"role": "user", "content": "Anna, 34, lives in Rome. Write this as JSON."}]
TOKENS = 96


@pytest.mark.parametrize(
    ("seed", "part"),
    [*marked([(0, part) for part in range(5)], quick=[(0, 0)]), *(
        pytest.param(seed, part, marks=pytest.mark.slow) for seed in range(1, 20) for part in range(5))],
)  # fmt: skip
def test_answers_fit_types_of_the_clients(llm: LLM, seed: int, part: int) -> None:
    """A fifth of the types in one batch."""
    asked = list(EVERY.items())[part::5]
    fields = {"max_tokens": TOKENS, "seed": seed, "temperature": 0.8}
    params = [SamplingParams(**fields, structured_outputs={"json": schema}) for _, schema in asked]
    ended = 0
    for (name, schema), out in zip(asked, llm.generate([CHAT] * len(asked), params), strict=True):
        assert out.finish_reason in ("stop", "length")
        if out.finish_reason == "stop":
            ended += 1
            value = json.loads(out.text or "")
            assert jsonschema_rs.validator_for(schema).is_valid(value), (name, schema, value)
    assert ended > len(asked) / 2


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
