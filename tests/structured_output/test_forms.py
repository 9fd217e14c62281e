"""Tests of the demo model with random schemas and expressions: other libraries accept answers that end with `stop`."""

import json
import random
import re
from typing import Any

import jsonschema_rs
import pytest

from runtime import LLM, SamplingParams
from runtime.errors import RequestError
from tests.structured_output import forms

CHAT = [{"role": "user", "content": "Anna, 34, lives in Rome. Write this as JSON."}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
MAX_TOKENS = 96  # tokens


def params(i: int, **asked: Any) -> SamplingParams:
    return SamplingParams(
        max_tokens=MAX_TOKENS, structured_outputs=asked, seed=i, temperature=(0, 1)[i % 2], top_p=(1, 0.9)[i // 2 % 2]
    )


@pytest.mark.parametrize(
    ("form", "part"),
    [("json", 0), ("regex", 0), *(pytest.param(form, part, marks=pytest.mark.slow)
                                  for form, parts in (("json", 167), ("regex", 17)) for part in range(1, parts))],
)  # fmt: skip
def test_answers_that_end_match(llm: LLM, form: str, part: int) -> None:
    rng = random.Random(part)
    made: list[Any] = [forms.schema(rng) if form == "json" else forms.regex(rng) for _ in range(12)]
    outs = llm.generate([CHAT] * len(made), [params(i, **{form: each}) for i, each in enumerate(made)])
    for each, out in zip(made, outs, strict=True):
        assert out.finish_reason in ("stop", "length")
        if out.finish_reason == "stop" and form == "json":
            value = json.loads(out.text or "")
            assert jsonschema_rs.validator_for(each).is_valid(value), (each, value)
        elif out.finish_reason == "stop":
            assert re.fullmatch(each, out.text or ""), (each, out.text)
    assert sum(out.finish_reason == "stop" for out in outs) > len(made) / 2


def test_several_tokens_are_unmasked_per_forward(llm: LLM) -> None:
    from training.demo.tasks.records import json_object

    rng = random.Random(0)
    samples = [json_object(rng) for _ in range(24)]
    chats = [[dict(message) for message in sample.messages] for sample in samples]
    outs = llm.generate(chats, SamplingParams(max_tokens=MAX_TOKENS, structured_outputs={"json_object": True}))
    assert all(out.finish_reason == "stop" and json.loads(out.text or "") for out in outs)
    assert sum(len(out.token_ids) + 1 for out in outs) / sum(out.nfe for out in outs) >= 2


@pytest.mark.parametrize(
    "asked",
    [{"json": PERSON}, {"json": json.dumps(PERSON)}, {"json_object": True}, {"choice": ["a", "ab", 'x/"\\ .']},
     {"grammar": 'start: "x"+ "y"'}, {"grammar": 'root ::= "x" [a-c]+ "y"'}, {"regex": "^[0-9]{3}/x$"}],
)  # fmt: skip
def test_a_stream_brings_the_same_text(llm: LLM, asked: dict[str, Any]) -> None:
    complete = llm.generate([CHAT], params(0, **asked))[0]
    for mode in ("denoise", "block_append"):
        *events, final = llm.stream(CHAT, params(0, **asked), stream_mode=mode)  # type: ignore[arg-type]
        assert "".join(event["text"] for event in events) == final["text"] == complete.text
    if "choice" in asked:
        assert complete.text in asked["choice"]


def test_each_choice_matches_the_expression(llm: LLM) -> None:
    asked = SamplingParams(
        max_tokens=MAX_TOKENS, n=3, temperature=2.0, seed=5, structured_outputs={"regex": "[a-z]{3}[0-9]"}
    )
    texts = [choice.text for choice in llm.generate([CHAT], asked)[0].choices]
    assert all(re.fullmatch("[a-z]{3}[0-9]", text or "") for text in texts)
    assert len(set(texts)) > 1


def test_an_answer_cut_at_max_tokens_is_a_valid_prefix(llm: LLM) -> None:
    out = llm.generate([CHAT], SamplingParams(max_tokens=9, structured_outputs={"json": PERSON}))[0]
    assert (out.finish_reason, len(out.token_ids)) == ("length", 9)
    assert (out.text or "").startswith('{"name": "')


def test_an_output_says_why_it_is_cut_or_ended_at_a_limit(llm: LLM) -> None:
    numbers = {"type": "array", "items": {"type": "integer"}, "minItems": 8}
    for form, expected in ((numbers, "the answer is cut"), ({"minLength": 20}, "did not end this answer")):
        params = SamplingParams(max_tokens=3, structured_outputs={"json": {"type": "string", **form}})
        out = llm.generate([CHAT], params)[0]
        *_, final = llm.stream(CHAT, params)
        assert expected in out.warning
        assert (out.warning, out.choices[0].warning) == (final["warning"], final["warning"])
    free = SamplingParams(max_tokens=3)
    assert llm.generate([CHAT], free)[0].warning == ""
    *_, final = llm.stream(CHAT, free)
    assert "warning" not in final


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"structured_outputs": {"json": {"enum": []}}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": {"$ref": "#/nowhere"}}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": {"type": "object"}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a(?!b)"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "start: nothing"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"grammar": "root ::= ("}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "decoding": {"algorithm": "edit"}}, None),
        ({"structured_outputs": {"regex": "a"}, "decoding": {"algorithm": "fixed"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "decoding": {"remask_threshold": 0.2}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "decoding": {"suppress_eos": "logits"}}, "structured_outputs"),
    ],
)
def test_unsupported_forms_are_refused(llm: LLM, changes: dict[str, Any], param: str | None) -> None:
    with pytest.raises(RequestError) as refused:
        llm.generate([CHAT], SamplingParams(**changes))
    assert refused.value.status == 400
    assert param is None or refused.value.param in (param, param.split(".")[0])
    assert len(str(refused.value)) < 400


def test_without_a_tokenizer_it_is_refused() -> None:
    with LLM(device="cpu", skip_tokenizer=True) as bare, pytest.raises(RequestError, match="no tokenizer is loaded"):
        bare.generate([[1, 2]], SamplingParams(structured_outputs={"regex": "a"}))
