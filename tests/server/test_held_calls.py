"""Tests of tool calls that a grammar constrains to their schemas, on the shipped demo: they parse in any case."""

import json
from typing import Any

import httpx
import jsonschema_rs
import pytest

from tests.server.dialects import CHAT, MESSAGES, RESPONSES, ROUTES, Answer, ask, request, tool
from tests.server.harness import ServerProcess

BOOKING = {
    "type": "object",
    "properties": {"seats": {"type": "integer", "minimum": 1, "maximum": 9}, "class": {"enum": ["first", "second"]}},
    "required": ["seats", "class"],
}
SET = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
BOOK, STRICT = tool(CHAT, "book", BOOKING), tool(CHAT, "book", BOOKING, strict=True)
TEXTS = {"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]}  # they overlap
PING = {"type": "function", "function": {"name": "ping"}}
ONE = {"tool_choice": "required", "parallel_tool_calls": False}
QUESTION = "What is 3 plus 4?"


@pytest.fixture(scope="module")
def server(demo: ServerProcess) -> ServerProcess:
    return demo


def body(route: str = CHAT, **fields: Any) -> dict[str, Any]:
    return request(route, QUESTION, **{"model": None, "max_tokens": 120, **fields})


def check(answer: Answer) -> None:
    """Checks that the arguments of each call match their schema."""
    for name, arguments in answer.calls:
        schema = BOOKING if name == "book" else {"const": {}}
        assert jsonschema_rs.validator_for(schema).is_valid(json.loads(arguments)), arguments


def test_a_required_call_matches_its_schema(client: httpx.Client) -> None:
    asked = body(tools=[BOOK, PING], **ONE)
    found = ask(client, CHAT, asked)
    assert (found.reason, found.content, len(found.calls)) == ("tool_calls", "", 1)
    check(found)
    assert ask(client, CHAT, asked, stream=True) == found


def test_a_named_call_matches_its_schema_and_is_streamed(client: httpx.Client) -> None:
    named = {"type": "function", "function": {"name": "book"}}
    for seed in range(3):
        asked = body(tools=[PING, BOOK], tool_choice=named, temperature=2, seed=seed)
        found = ask(client, CHAT, asked)
        assert ([name for name, _ in found.calls], found.reason, found.content) == (["book"], "tool_calls", "")
        check(found)
        assert ask(client, CHAT, asked, stream=True) == found
    cut = ask(client, CHAT, body(tools=[BOOK], tool_choice=named, max_tokens=24), stream=True)
    assert cut.reason == "length"
    assert all(name == "book" and not arguments.endswith("}") for name, arguments in cut.calls)


@pytest.mark.parametrize("route", ROUTES)
def test_a_required_call_that_is_cut_off_shows_no_markup(client: httpx.Client, route: str) -> None:
    """A complete answer then has no call, as its arguments would be cut off. A stream may have begun one."""
    choice = {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}} if route == MESSAGES else ONE
    for max_tokens in (1, 3, 8, 20, 24):
        asked = body(route, tools=[tool(route, "book", BOOKING)], temperature=2, seed=1, **choice)
        asked["max_output_tokens" if route == RESPONSES else "max_tokens"] = max_tokens
        assert ask(client, route, asked) == Answer(reason="length")
        events = ask(client, route, asked, stream=True)
        assert (events.content, events.reason) == ("", "length")
        assert all(name == "book" for name, _ in events.calls)


def test_calls_of_strict_tools_match_their_schemas(client: httpx.Client) -> None:
    for seed in range(3):
        found = ask(client, CHAT, body(tools=[STRICT, PING], temperature=1.5, seed=seed))
        check(found)
        assert found.content or found.calls


def test_a_response_format_with_tools_gives_that_format_or_a_call(client: httpx.Client) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": {"type": "integer"}}}
    found = ask(client, CHAT, body(tools=[BOOK], response_format=form))
    check(found)
    assert found.calls or isinstance(json.loads(found.content), int)


@pytest.mark.parametrize(("more", "param"), [({"tool_choice": "required"}, "tool_choice"), ({}, "tools")])
def test_an_invalid_schema_is_refused(client: httpx.Client, more: dict[str, Any], param: str) -> None:
    wrong = tool(CHAT, "f", {"properties": {"a": {"type": "nothing"}}}, strict=True)
    refused = client.post(CHAT, json=body(tools=[wrong], **more))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("count", [1, 24])
def test_required_calls_name_the_tool_with_an_unsupported_schema(client: httpx.Client, count: int) -> None:
    tools = [*(tool(CHAT, f"book{i}", BOOKING) for i in range(count)), tool(CHAT, "set", SET)]
    refused = client.post(CHAT, json=body(tools=tools, tool_choice="required"))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")
    where = f"tools[{count}].function.parameters: properties.tags.uniqueItems: "
    assert where in refused.json()["error"]["message"]


def test_strict_tools_with_unsupported_schemas_are_ignored_and_named(client: httpx.Client) -> None:
    tools = [STRICT, tool(CHAT, "set", SET, strict=True), tool(CHAT, "other", SET)]
    tools += [tool(CHAT, "pick", {"type": "object", "properties": {"a": TEXTS}}, strict=True)]
    for stream in (False, True):
        answer = client.post(CHAT, json=body(tools=tools, stream=stream))
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-unmask-ignored"] == "tools[1].function.strict, tools[3].function.strict"
    for route in (RESPONSES, MESSAGES):
        answer = client.post(route, json=body(route, tools=[tool(route, "set", SET, strict=True)], max_tokens=8))
        assert (answer.status_code, answer.headers["x-unmask-ignored"]) == (200, "tools[0].strict")


def test_keywords_without_effect_are_accepted(client: httpx.Client) -> None:
    harmless = {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"format": "path"}}
    more = {"more": {**harmless, "unevaluatedProperties": True}}
    offered = tool(CHAT, "book", {**BOOKING, "properties": {**BOOKING["properties"], **more}})  # type: ignore[dict-item]
    found = ask(client, CHAT, body(tools=[offered], **ONE))
    assert found.calls
    check(found)


NOTE = {"type": "string", "nullable": True, "enum": [None]}  # the type null in OpenAPI 3.0


@pytest.mark.parametrize("root", [{"type": "object", "nullable": True}, {"type": ["object", "null"]}, {"type": None}])
def test_arguments_may_have_nullable_fields_and_are_never_null(client: httpx.Client, root: dict[str, Any]) -> None:
    schema = {**root, "properties": {"note": NOTE}, "required": ["note"]}
    for route, choice in ((CHAT, "required"), (MESSAGES, {"type": "any"})):
        found = ask(client, route, body(route, tools=[tool(route, "keep", schema)], tool_choice=choice))
        name, arguments = found.calls[0]
        assert (name, json.loads(arguments)) == ("keep", {"note": None})


def test_a_model_whose_template_has_no_tools_gets_them_in_the_prompt(client: httpx.Client) -> None:
    ids = client.post("/tokenize", json={"messages": body()["messages"], "tools": [BOOK]}).json()["tokens"]
    text = client.post("/detokenize", json={"tokens": ids}).json()["prompt"]
    assert f"<tools>\n{json.dumps(BOOK)}\n</tools>" in text
