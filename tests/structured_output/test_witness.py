"""Tests of witnesses: answers end in their format within `max_tokens`, and do not repeat themselves forever."""

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from runtime import LLM, SamplingParams
from runtime.errors import RequestError
from runtime.request.engine_messages import StructuredLimits
from runtime.request.structured import grammar_of
from runtime.structured_output.grammar_cache import GrammarCache, create_grammar_cache
from runtime.structured_output.witness import MAX_DIGITS
from tests.server.checkpoint import write_checkpoint
from tests.structured_output.witness_rule import failures

PLENTY = 100
NESTED = {
    "type": "object",
    "properties": {
        "reply": {"type": "string"},
        "tree": {"$ref": "#/$defs/tree"},
        "kind": {"anyOf": [{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
                           {"const": 1}]},
    },
    "required": ["reply", "tree", "kind"],
    "$defs": {
        "tree": {"type": "object",
                 "properties": {"next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
                                "size": {"type": "integer"}}, "required": ["next"]}
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def grammars(llm: LLM) -> GrammarCache:
    return create_grammar_cache(llm.tokenizer.directory, llm.info)


def witness_of(grammars: GrammarCache, form: dict[str, Any]) -> tuple[str, list[int]]:
    """Returns the grammar of a form, and its witness."""
    text = grammar_of(form, "x")
    found = grammars.witness(text, grammars.compile(text, "x"))
    assert found is not None
    return text, found


@pytest.mark.parametrize("tiny", [False, pytest.param(True, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.matrix) for seed in range(1, 5))])
def test_answers_to_random_schemas_end_in_time(llm: LLM, tiny: bool, seed: int, tmp_path: Path) -> None:
    if not tiny:
        assert list(failures(llm, seed, 20)) == []
        return
    with LLM(str(write_checkpoint(tmp_path)), device="cpu", max_num_reqs=96) as random_weights:
        assert list(failures(random_weights, seed, 20)) == []


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"json": NESTED}, r'\{"reply": "", "tree": \{"next": null\}, "kind": 1\}'),
        ({"json": {"type": "string", "minLength": 30}}, r'"[^"]{30,}"'),
        ({"json": {"type": "array", "items": {"type": "boolean"}, "minItems": 40}}, r"\[((true|false)(, )?){40}\]"),
        ({"json_object": True}, r"\{\}"),
        ({"regex": "[a-z]{3,90};[0-9]{4}"}, "[a-z]{3,}?;[0-9]{4}"),
        ({"regex": "(ab)*"}, ""),
        ({"json": {"type": "array", "items": {"type": "integer"}, "minItems": 128, "maxItems": 128}},
         r"\[(\d(, )?){128}\]"),
        ({"json": {"type": "string", "minLength": 1500}}, r'"[^"]{1500,}"'),
        ({"choice": ["yes, certainly", "no"]}, "no"),
        ({"grammar": 'start: item ("," item)* ";"\nitem: /[a-z]+/ | "(" start ")"'}, "[a-z]+;"),
        ({"grammar": 'root ::= "[" (root ",")* "x" "]"'}, r"\[x\]"),
    ],
)  # fmt: skip
def test_witnesses_are_short_answers(llm: LLM, grammars: GrammarCache, form: dict[str, Any], expected: str) -> None:
    _, witness = witness_of(grammars, form)
    assert re.fullmatch(expected, llm.tokenizer.decode(witness)), llm.tokenizer.decode(witness)


@pytest.mark.parametrize("extra", [0, 1, 7, 40])
def test_an_answer_ends_at_its_limit(llm: LLM, grammars: GrammarCache, extra: int) -> None:
    _, witness = witness_of(grammars, {"json": NESTED})
    params = SamplingParams(max_tokens=len(witness) + extra, structured_outputs={"json": NESTED}, temperature=2.0, n=6)
    (out,) = llm.generate(["Hello"], params)
    for completion in out.choices:
        assert completion.finish_reason == "stop"
        assert jsonschema_rs.validator_for(NESTED).is_valid(json.loads(completion.text or ""))


@pytest.mark.parametrize(("changes", "missing"), [({"structured_complete": False}, 0), ({}, 1)])
def test_an_answer_may_be_cut(llm: LLM, grammars: GrammarCache, changes: dict[str, Any], missing: int) -> None:
    _, witness = witness_of(grammars, {"json": NESTED})
    params = SamplingParams(
        max_tokens=len(witness) - missing, structured_outputs={"json": NESTED}, temperature=2.0, seed=0, **changes
    )
    assert llm.generate(["Hello"], params)[0].finish_reason == "length"


def accepted(
    grammars: GrammarCache, form: dict[str, Any], wanted: list[int], *, max_run: int = 0, max_length: int = 0
) -> list[int]:
    """Returns the tokens of an output whose model wants `wanted`, with more than enough space."""
    text, witness = witness_of(grammars, form)
    matcher = grammars.compile(text, "x")
    matcher.end = grammars.output_end(matcher, witness, StructuredLimits(max_run=max_run, max_length=max_length))
    found = [matcher.accept_token(token, PLENTY) for token in wanted if not matcher.finished]
    return [token for token in found if token not in grammars.facts.eos]


@pytest.mark.parametrize(
    ("begin", "repeated", "end"),
    [
        ('{"a": "', "ha", '"'), ('{"a": "', "- = ", '"'), ('{"a": "", "b": [', "0, ", "]"),
        ('{"a": "", "c": [', "1, ", ""),
    ],
)  # fmt: skip
def test_a_repetition_ends(llm: LLM, grammars: GrammarCache, begin: str, repeated: str, end: str) -> None:
    encode = llm.tokenizer.encode
    wanted = [*encode(begin), *encode(repeated) * 9]
    ones = {"type": "array", "items": {"type": "integer"}, "minItems": 12}
    properties = {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "integer"}}, "c": ones}
    form = {"json": {"type": "object", "properties": properties, "required": ["a"], "additionalProperties": False}}
    assert accepted(grammars, form, wanted) == wanted
    found = accepted(grammars, form, wanted, max_run=6)
    if not end:
        assert found == wanted, "a fixed number of items is no repetition without end"
        return
    different = next(i for i, token in enumerate(wanted) if found[i] != token)
    assert 0 <= different - len(encode(begin)) - len(encode(repeated)) - 6 <= 2
    assert llm.tokenizer.decode(found[different : different + 1]).startswith(end)


def test_a_fraction_has_no_more_digits_than_a_double(llm: LLM, grammars: GrammarCache) -> None:
    wanted = llm.tokenizer.encode("[0." + "12345" * 10)
    for schema, digits in (({"type": "number"}, MAX_DIGITS), ({"type": "string"}, 50)):
        form = {"json": {"type": "array", "items": schema, "minItems": 1}}
        tokens = wanted if digits == MAX_DIGITS else llm.tokenizer.encode('["0.' + "12345" * 10)
        text = llm.tokenizer.decode(accepted(grammars, form, tokens))
        assert len(re.findall(r"\.([0-9]+)", text)[0]) <= digits + 2, text
        assert text.endswith("]") == (digits == MAX_DIGITS)


@pytest.mark.parametrize(
    ("own", "text", "length"),
    [
        ({}, "abcdefghijklmnopqrstuvw", 12), ({}, r"\"\n\\bcdefghijklmnopqr", 12),
        ({}, "日本語日本語日本語日本語日本語日本語", 12), ({"maxLength": 15}, "abcdefghijklmnopqrstuvw", 15),
    ],
)  # fmt: skip
def test_a_long_string_ends(llm: LLM, grammars: GrammarCache, own: dict[str, int], text: str, length: int) -> None:
    form = {"json": {"type": "array", "items": {"type": "string", **own}, "minItems": 2, "maxItems": 2}}
    found = llm.tokenizer.decode(accepted(grammars, form, llm.tokenizer.encode(f'["{text}'), max_length=12))
    (string,) = re.findall(r'^\["((?:[^"\\]|\\.)*)"', found)
    assert length <= len(json.loads(f'"{string}"')) < length + 8


def test_an_answer_whose_format_is_any_text_is_cut(llm: LLM) -> None:
    params = SamplingParams(max_tokens=3, structured_outputs={"regex": "(?s:.)*"})
    story = [{"role": "user", "content": "Write a story about a plum and a chair."}]
    assert llm.chat(story, params)[0].finish_reason == "length"


@pytest.mark.parametrize(
    "form",
    [{"choice": ["client_schema"]}, {"json": {"type": "string", "default": {"maxLength": float("inf")}}},
     {"json": {"enum": [{"maxItems": float("nan")}, 1]}}, {"json": {"properties": {"default": {"maxLength": 5}}}}],
)  # fmt: skip
def test_words_of_schemas_elsewhere_do_no_harm(llm: LLM, form: dict[str, Any]) -> None:
    params = SamplingParams(max_tokens=30, structured_outputs=form)
    with contextlib.suppress(RequestError):
        assert llm.generate(["Hello"], params)[0].finish_reason in ("stop", "length")
    assert llm.generate(["Hello"], SamplingParams(max_tokens=3))[0].finish_reason
