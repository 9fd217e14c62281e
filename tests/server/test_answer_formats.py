"""Tests of `response_format` and its aliases: a schema is enforced in every notation, and unknown keys are reported."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.server.harness import ServerProcess, serving, sse

SCHEMA = {
    "type": "object",
    "properties": {"zip": {"type": "integer"}},
    "required": ["zip"],
    "additionalProperties": False,
}
ASKED = "Write JSON for a person named Bob."
ROUTES = {
    "/v1/chat/completions": "response_format",
    "/v1/completions": "response_format",
    "/generate": "response_format",
    "/v1/responses": "text.format",
    "/v1/messages": "output_config.format",
}


@pytest.fixture(scope="module")
def server(demo: ServerProcess) -> ServerProcess:
    return demo


def body(route: str, form: Any, **more: Any) -> dict[str, Any]:
    outer, _, inner = ROUTES[route].partition(".")
    field = {outer: {inner: form} if inner else form}
    if route == "/v1/responses":
        return {"input": ASKED, "max_output_tokens": 40, **field, **more}
    chat = {"messages": [{"role": "user", "content": ASKED}], "max_tokens": 40}
    return {**(chat if route in ("/v1/chat/completions", "/v1/messages") else {"prompt": ASKED, "max_tokens": 40}),
            **field, **more}  # fmt: skip


def text(answer: dict[str, Any]) -> str:
    """Returns the text of an answer of any route."""
    if "choices" in answer:
        choice = answer["choices"][0]
        return choice["text"] if "text" in choice else choice["message"]["content"]
    if "output" in answer:
        return answer["output"][0]["content"][0]["text"]
    return answer["content"][0]["text"] if "content" in answer else answer["text"]


FORMS = [
    pytest.param({"type": "json_object", "schema": SCHEMA}, id="object"),
    pytest.param({"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}, id="nested"),
    pytest.param({"type": "json_schema", "name": "s", "schema": SCHEMA}, id="flat"),
    pytest.param({"type": "json_object", "schema": json.dumps(SCHEMA)}, id="text"),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("route", ROUTES)
def test_a_schema_is_enforced_in_every_notation(client: httpx.Client, route: str, form: dict[str, Any]) -> None:
    answer = client.post(route, json=body(route, form))
    assert answer.status_code == 200, answer.text
    assert "x-unmask-ignored" not in answer.headers
    value = json.loads(text(answer.json()))
    assert list(value) == ["zip"]
    assert type(value["zip"]) is int


@pytest.mark.parametrize("route", ROUTES)
def test_a_nullable_field_may_be_null_on_every_route(client: httpx.Client, route: str) -> None:
    nothing = {"type": "string", "nullable": True, "enum": [None]}  # the type null in OpenAPI 3.0
    schema = {**SCHEMA, "properties": {"zip": nothing}}
    answer = client.post(
        route, json=body(route, {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})
    )
    assert answer.status_code == 200, answer.text
    assert json.loads(text(answer.json())) == {"zip": None}
    if route != "/v1/messages":
        asked = {"structured_outputs": {"json": schema}}
        held = client.post(route, json={**body(route, {"type": "text"}), **asked})
        assert held.status_code == 200, held.text
        assert json.loads(text(held.json())) == {"zip": None}


def test_a_streamed_answer_conforms_to_the_schema(client: httpx.Client) -> None:
    asked = body("/v1/chat/completions", {"type": "json_object", "schema": SCHEMA}, stream=True)
    events = map(json.loads, sse(client.post("/v1/chat/completions", json=asked).text)[:-1])
    pieces = [event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]]
    assert list(json.loads("".join(pieces))) == ["zip"]


@pytest.mark.parametrize("schema", [{}, {"description": "anything"}, True, None])
def test_a_schema_without_a_type_gives_an_object(client: httpx.Client, schema: Any) -> None:
    form = {"type": "json_object", "schema": schema}
    answer = client.post("/v1/chat/completions", json=body("/v1/chat/completions", form, temperature=1, seed=3))
    assert answer.status_code == 200, answer.text
    assert text(answer.json()).startswith("{")


@pytest.mark.parametrize("schema", [3, [], "no JSON", False, {"type": "object", "not": {}}])
def test_an_invalid_or_unsupported_schema_is_refused(client: httpx.Client, schema: Any) -> None:
    refused = client.post(
        "/v1/chat/completions", json=body("/v1/chat/completions", {"type": "json_object", "schema": schema})
    )
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "response_format"


UNKNOWN = [
    ({"type": "json_object", "schemas": SCHEMA, "b": None}, ["schemas"]),
    ({"type": "json_object", "json_schema": {"schema": SCHEMA}}, ["json_schema"]),
    ({"type": "text", "schema": SCHEMA}, ["schema"]),
    ({"type": "json_schema", "extra": 1, "json_schema": {"name": "s", "schema": SCHEMA, "stricter": True}},
     ["extra", "json_schema.stricter"]),
    ({"type": "json_schema", "name": "s", "schema": SCHEMA, "stricter": True}, ["stricter"]),
    ({"type": "json_schema", "json_schema": {}, "schema": SCHEMA, "stricter": True}, ["stricter"]),
]  # fmt: skip


@pytest.mark.parametrize(("form", "names"), UNKNOWN)
@pytest.mark.parametrize("route", ROUTES)
def test_unknown_keys_are_named(client: httpx.Client, route: str, form: dict[str, Any], names: list[str]) -> None:
    answer = client.post(route, json=body(route, form))
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-unmask-ignored"].split(", ") == [f"{ROUTES[route]}.{name}" for name in names]


def test_strict_fields_refuse_unknown_keys() -> None:
    with serving("--device", "cpu", "--strict-fields") as server, server.client() as client:
        for route, path in ROUTES.items():
            for form, (name, *_) in UNKNOWN:
                refused = client.post(route, json=body(route, form))
                assert refused.status_code == 400
                assert refused.json()["error"]["message"].startswith(f"{path}.{name}: is not supported")
            assert client.post(route, json=body(route, {"type": "json_object", "schema": SCHEMA})).status_code == 200


def test_the_earlier_name_of_a_messages_format_is_read(client: httpx.Client) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    answer = client.post("/v1/messages", json=body("/v1/messages", None, output_format=form))
    assert answer.status_code == 200, answer.text
    assert "x-unmask-ignored" not in answer.headers
    assert list(json.loads(text(answer.json()))) == ["zip"]
    assert client.post("/v1/messages", json=body("/v1/messages", form, output_format=form)).status_code == 200
    for sent, says in (
        ({"output_format": {"type": "xml"}}, "output_format: "),
        ({"output_format": form, "output_config": {"format": {"type": "text"}}}, "output_format: conflicts with "),
        ({"output_format": {**form, "x": 1}, "output_config": {"format": form}}, "output_format: conflicts with "),
    ):
        refused = client.post("/v1/messages", json=body("/v1/messages", None) | sent)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith(says)
    extended = body("/v1/messages", None, output_format={**form, "x": 1})
    assert client.post("/v1/messages", json=extended).headers["x-unmask-ignored"] == "output_format.x"
