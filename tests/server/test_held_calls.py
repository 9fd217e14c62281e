"""Tests of tool calls that a grammar constrains to their schemas, on the shipped demo: they parse in any case."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema_rs
import pytest

from tests.server.harness import ServerProcess
from tests.server.test_tools import CHAT, complete, streamed

BOOKING = {
    "type": "object",
    "properties": {"seats": {"type": "integer", "minimum": 1, "maximum": 9}, "class": {"enum": ["first", "second"]}},
    "required": ["seats", "class"],
}
BOOK = {"type": "function", "function": {"name": "book", "parameters": BOOKING}}
PING = {"type": "function", "function": {"name": "ping"}}
STRICT = {"type": "function", "function": {**BOOK["function"], "strict": True}}  # type: ignore[dict-item]
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "What is 3 plus 4?"}], "max_tokens": 120}


def fits(arguments: str, schema: dict[str, Any]) -> None:
    assert jsonschema_rs.validator_for(schema).is_valid(json.loads(arguments)), arguments


@pytest.fixture(scope="module")
def server(demo: ServerProcess) -> ServerProcess:
    return demo


def test_a_required_call_matches_its_schema(client: httpx.Client) -> None:
    body = {**BODY, "tools": [BOOK, PING], "tool_choice": "required", "parallel_tool_calls": False}
    found = complete(client, body)
    assert found["reason"] == "tool_calls"
    assert found["content"] == ""
    ((name, arguments),) = found["calls"]
    fits(arguments, BOOKING if name == "book" else {"const": {}})
    assert streamed(client, body) == [found]


def test_a_named_call_matches_its_schema_and_is_streamed(client: httpx.Client) -> None:
    named = {"type": "function", "function": {"name": "book"}}
    for seed in range(3):
        body = {**BODY, "tools": [PING, BOOK], "tool_choice": named, "temperature": 2, "seed": seed}
        found = complete(client, body)
        ((name, arguments),) = found["calls"]
        assert (name, found["reason"], found["content"]) == ("book", "tool_calls", "")
        fits(arguments, BOOKING)
        assert streamed(client, body) == [found]
    (cut,) = streamed(client, {**BODY, "tools": [BOOK], "tool_choice": named, "max_tokens": 24})
    assert cut["reason"] == "length"
    assert all(name == "book" and not arguments.endswith("}") for name, arguments in cut["calls"])


def test_a_required_call_that_is_cut_off_shows_no_markup(client: httpx.Client) -> None:
    """A complete answer then has no call, as its arguments would be cut off. A stream may have begun one."""
    body = {
        **BODY,
        "tools": [BOOK],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 2,
        "seed": 1,
    }
    for max_tokens in (1, 2, 3, 5, 8, 13, 20, 24):
        found = complete(client, {**body, "max_tokens": max_tokens})
        assert (found["content"], found["calls"], found["reason"]) == ("", [], "length")
        (events,) = streamed(client, {**body, "max_tokens": max_tokens})
        assert (events["content"], events["reason"]) == ("", "length")
        assert all(name == "book" for name, _ in events["calls"])
        items = client.post(
            "/v1/responses",
            json={"input": "What is 3 plus 4?", "max_output_tokens": max_tokens, "tool_choice": "required",
                  "tools": [{"type": "function", **BOOK["function"]}]},  # type: ignore[dict-item]
        ).json()  # fmt: skip
        assert items["status"] == "incomplete"
        assert [part["text"] for item in items["output"] for part in item["content"]] == [""]
        message = client.post(
            "/v1/messages",
            json={"messages": BODY["messages"], "max_tokens": max_tokens, "tool_choice": {"type": "any"},
                  "tools": [{"name": "book", "input_schema": BOOKING}]},
        ).json()  # fmt: skip
        assert (message["stop_reason"], message["content"]) == ("max_tokens", [])


def test_calls_of_strict_tools_match_their_schemas(client: httpx.Client) -> None:
    for seed in range(3):
        found = complete(client, {**BODY, "tools": [STRICT, PING], "temperature": 1.5, "seed": seed})
        for name, arguments in found["calls"]:
            fits(arguments, BOOKING if name == "book" else {"const": {}})
        assert found["content"] or found["calls"]


def test_a_response_format_with_tools_gives_that_format_or_a_call(client: httpx.Client) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": {"type": "integer"}}}
    found = complete(client, {**BODY, "tools": [BOOK], "response_format": form})
    if found["calls"]:
        fits(found["calls"][0][1], BOOKING)
    else:
        assert isinstance(json.loads(found["content"]), int)


def test_an_invalid_schema_is_refused(client: httpx.Client) -> None:
    wrong = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "nothing"}}}}}
    refused = client.post(CHAT, json={**BODY, "tools": [wrong], "tool_choice": "required"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")
    assert "cannot be applied" in refused.text
    strict = {"type": "function", "function": {**wrong["function"], "strict": True}}  # type: ignore[dict-item]
    refused = client.post(CHAT, json={**BODY, "tools": [strict]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")


SET = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}


def unsupported(name: str, **more: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "parameters": SET, **more}}


@pytest.mark.parametrize("count", [1, 24])
def test_required_calls_name_the_tool_with_an_unsupported_schema(client: httpx.Client, count: int) -> None:
    tools = [
        *({**BOOK, "function": {**BOOK["function"], "name": f"book{i}"}} for i in range(count)),
        unsupported("set"),
    ]
    refused = client.post(CHAT, json={**BODY, "tools": tools, "tool_choice": "required"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")
    where = f"tools[{count}].function.parameters: properties.tags.uniqueItems: true is not supported"
    assert where in refused.json()["error"]["message"]


@pytest.mark.matrix
def test_a_strict_tool_with_an_unsupported_schema_leaves_the_others_constrained(client: httpx.Client) -> None:
    tools = [STRICT, unsupported("set", strict=True), unsupported("other")]
    for stream in (False, True):
        answer = client.post(CHAT, json={**BODY, "tools": tools, "stream": stream, "temperature": 1.5})
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-unmask-ignored"] == "tools[1].function.strict"
    flat = [{"type": "function", **unsupported("set", strict=True)["function"]}]  # type: ignore[dict-item]
    answer = client.post("/v1/responses", json={"input": "What is 3 plus 4?", "tools": flat, "max_output_tokens": 8})
    assert (answer.status_code, answer.headers["x-unmask-ignored"]) == (200, "tools[0].strict")
    item = {"name": "set", "input_schema": SET, "strict": True}
    answer = client.post("/v1/messages", json={"messages": BODY["messages"], "max_tokens": 8, "tools": [item]})
    assert (answer.status_code, answer.headers["x-unmask-ignored"]) == (200, "tools[0].strict")


def strict_tool(name: str, value: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"value": value}}
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": True}}


OVERLAPPING: dict[str, Any] = {"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]}


def test_unsupported_strict_tools_of_both_kinds_are_ignored_and_named(client: httpx.Client) -> None:
    tools = [STRICT, unsupported("set", strict=True), strict_tool("pick", OVERLAPPING)]
    answer = client.post(CHAT, json={**BODY, "tools": tools})
    assert answer.status_code == 200, answer.text
    ignored = answer.headers["x-unmask-ignored"].split(", ")
    assert ignored == ["tools[1].function.strict", "tools[2].function.strict"]


def test_keywords_without_effect_are_accepted(client: httpx.Client) -> None:
    harmless = {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"format": "path"}}
    parameters = {
        **BOOKING,
        "properties": {**BOOKING["properties"], "more": {**harmless, "unevaluatedProperties": True}},
    }
    tool = {"type": "function", "function": {"name": "book", "parameters": parameters}}
    found = complete(client, {**BODY, "tools": [tool], "tool_choice": "required"})
    fits(found["calls"][0][1], parameters)


NOTE = {"type": "string", "nullable": True, "enum": [None]}  # the type null in OpenAPI 3.0
NULLABLE_ROOTS = [{"type": "object", "nullable": True}, {"type": ["object", "null"]}, {"type": None}]


@pytest.mark.parametrize("root", NULLABLE_ROOTS, ids=[json.dumps(root) for root in NULLABLE_ROOTS])
def test_arguments_may_have_nullable_fields_and_are_never_null(client: httpx.Client, root: dict[str, Any]) -> None:
    schema = {**root, "properties": {"note": NOTE}, "required": ["note"]}
    function = {"name": "keep", "parameters": schema}
    found = complete(client, {**BODY, "tools": [{"type": "function", "function": function}], "tool_choice": "required"})
    name, arguments = found["calls"][0]
    assert (name, json.loads(arguments)) == ("keep", {"note": None})
    tool = {"name": "keep", "input_schema": schema}
    body = {**BODY, "max_tokens": 64, "tools": [tool], "tool_choice": {"type": "any"}}
    message = client.post("/v1/messages", json=body)
    assert message.status_code == 200, message.text
    assert message.json()["content"][0]["input"] == {"note": None}


def test_a_model_whose_template_has_no_tools_gets_them_in_the_prompt(client: httpx.Client) -> None:
    asked = {"messages": BODY["messages"], "tools": [BOOK]}
    events = client.post("/tokenize", json=asked).json()["tokens"]
    text = client.post("/detokenize", json={"tokens": events}).json()["prompt"]
    assert f"<tools>\n{json.dumps(BOOK)}\n</tools>" in text
