"""Structured output over HTTP, on the shipped demo: the unmodified ``openai`` client, streams, refusals, others."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pydantic
import pytest

from tests.server.harness import ServerProcess

CHAT: Any = {
    "model": "unmask-demo",
    "messages": [{"role": "user", "content": "Anna, 34, lives in Rome. Write this as JSON."}],
    "max_tokens": 80,
}


class Person(pydantic.BaseModel):
    name: str
    age: int
    city: str


@pytest.fixture(scope="module")
def server(demo: ServerProcess) -> ServerProcess:
    return demo


def test_parse_gives_an_object(ai: openai.OpenAI) -> None:
    answer = ai.chat.completions.parse(**CHAT, response_format=Person)
    assert answer.choices[0].message.parsed == Person(name="Anna", age=34, city="Rome")
    with ai.chat.completions.stream(**CHAT, response_format=Person) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == answer.choices[0].message.parsed


def test_a_stream_brings_the_same_text(ai: openai.OpenAI) -> None:
    asked = {**CHAT, "response_format": {"type": "json_object"}, "n": 2, "temperature": 1, "seed": 7}
    whole = [choice.message.content for choice in ai.chat.completions.create(**asked).choices]
    texts = ["", ""]
    for chunk in ai.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == whole
    assert all(isinstance(json.loads(text), dict) for text in texts)


@pytest.mark.parametrize(
    "form",
    [{"structured_outputs": {"choice": ["red", "blue"]}}, {"guided_choice": ["red", "blue"]}, {"regex": "red|blue"},
     {"guided_regex": "red|blue"}, {"ebnf": 'root ::= "red" | "blue"'}, {"guided_grammar": 'start: "red" | "blue"'},
     {"json_schema": {"enum": ["red", "blue"]}}, {"guided_json": {"enum": ["red", "blue"]}}],
)  # fmt: skip
@pytest.mark.parametrize("route", ["/generate", "/v1/completions"])
def test_it_goes_by_every_name(demo: ServerProcess, route: str, form: dict[str, Any]) -> None:
    with demo.client() as client:
        answer = client.post(route, json={"prompt": "A colour:", "max_tokens": 20, **form}).json()
    text = answer["text"] if route == "/generate" else answer["choices"][0]["text"]
    assert text.strip('"') in ("red", "blue")


@pytest.mark.parametrize(
    "form",
    [{"guided_choice": ["red"], "structured_outputs": {"choice": ["red"]}},
     {"structured_outputs": {"choice": ["red"], "json": None, "disable_any_whitespace": False}}],
)  # fmt: skip
def test_one_form_in_two_ways_and_switches_that_are_off_pass(demo: ServerProcess, form: dict[str, Any]) -> None:
    with demo.client() as client:
        assert client.post("/generate", json={"prompt": "A colour:", **form}).json()["text"] == "red"


def test_two_forms_are_refused(demo: ServerProcess) -> None:
    with demo.client() as client:
        refused = client.post("/generate", json={"prompt": "a", "regex": "a", "structured_outputs": {"regex": "b"}})
        switched = client.post(
            "/generate", json={"prompt": "a", "structured_outputs": {"regex": "b", "disable_any_whitespace": True}}
        )
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "structured_outputs")
    assert (switched.status_code, switched.json()["error"]["code"]) == (400, "unknown_field")


def test_holes_are_not_filled_by_a_grammar(demo: ServerProcess) -> None:
    with demo.client() as client:
        refused = client.post("/v1/infill", json={"text": "a <mask:2> b", "regex": "a"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "regex")


def test_a_large_schema_does_not_hold_others(demo: ServerProcess) -> None:
    """It takes a second to compile, in the server and in the engine."""
    names = [f"p{i}" for i in range(1200)]
    large = {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names}
    with demo.client() as client, ThreadPoolExecutor(1) as beside:
        job = beside.submit(client.post, "/v1/chat/completions", json={**CHAT, "guided_json": large}, timeout=60)
        slowest = 0.0
        while not job.done():
            began = time.monotonic()
            assert httpx.get(f"{demo.url}/health").status_code == 200
            slowest = max(slowest, time.monotonic() - began)
        answer = job.result()
    assert answer.status_code == 200, answer.text
    assert slowest < 0.5


def test_a_schema_that_explodes_is_refused(demo: ServerProcess) -> None:
    odd = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1200)}}
    with demo.client() as client:
        refused = client.post("/v1/chat/completions", json={**CHAT, "structured_outputs": {"json": odd}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "structured_outputs.json")
    assert "<state>" not in refused.text


def test_a_schema_in_a_string_is_as_short_as_others(demo: ServerProcess) -> None:
    with demo.client() as client:
        refused = client.post("/generate", json={"prompt": "a", "guided_json": "[" + "{}," * 30_000 + "{}]"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "guided_json")
    assert "characters" in refused.text


@pytest.mark.parametrize(
    ("rule", "status"), [("a{}: a{}", 200), ("a{}: a{}?", 400), ("A{}: A{}", 200), ("A{}: ~A{}", 200)]
)
def test_a_long_chain_of_rules_ends_no_process(demo: ServerProcess, rule: str, status: int) -> None:
    """Its compiler goes down such chains by recursion, which an ordinary stack does not hold. Where each of 4,000 rules
    may be the last there are too many to be in at once, which is told before the request is queued."""
    first, many = rule[0], 4000
    rules = [f"start: {first}0", *(rule.format(i, i + 1) for i in range(many)), f'{first}{many}: "x"']
    with demo.client() as client:
        answer = client.post("/generate", json={"prompt": "a", "max_tokens": 4, "ebnf": "\n".join(rules)}, timeout=60)
        assert answer.status_code == status, answer.text
        assert client.post("/generate", json={"prompt": "a", "max_tokens": 4}).status_code == 200


def test_a_grammar_that_compiles_for_minutes_is_refused_and_holds_nobody_long(demo: ServerProcess) -> None:
    """An automaton of ten million states, of a schema of some forty characters, of a form and of a tool."""
    endless = {"type": "integer", "multipleOf": 9999991}
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": endless}}},
    }
    asked: Any = [
        ({"guided_json": endless}, "guided_json"),
        ({"tools": [tool], "tool_choice": "required"}, "tool_choice"),
    ]
    with demo.client() as client, ThreadPoolExecutor(1) as beside:
        for more, param in asked:
            job = beside.submit(client.post, "/v1/chat/completions", json={**CHAT, **more}, timeout=60)
            time.sleep(0.3)
            began = time.monotonic()
            other = client.post("/generate", json={"prompt": "a", "max_tokens": 4, "regex": f"c|{param}"}, timeout=60)
            assert other.status_code == 200, other.text
            assert time.monotonic() - began < 20
            refused = job.result()
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
            assert "takes more than 4 s to compile" in refused.text
            began = time.monotonic()
            again = client.post("/v1/chat/completions", json={**CHAT, **more})
            assert (again.status_code, again.text) == (400, refused.text)
            assert time.monotonic() - began < 1


def test_grammars_that_nobody_waits_for_cost_no_turn(demo: ServerProcess) -> None:
    for i in range(12):  # each takes about a second
        with demo.client() as client, pytest.raises(httpx.ReadTimeout):
            client.post("/generate", json={"prompt": "a", "regex": "a?" * 7000 + f"b{{{i}}}"}, timeout=0.1)
    began = time.monotonic()
    with demo.client() as client:
        answer = client.post("/generate", json={"prompt": "a", "max_tokens": 4, "regex": "c{1,7}"}, timeout=60)
    assert answer.status_code == 200, answer.text
    assert time.monotonic() - began < 8
