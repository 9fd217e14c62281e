"""Tests of `response_format` and its aliases: a schema is enforced in every notation, and unknown keys are reported."""

import json
from typing import Any

import httpx
import pytest

from runtime.server.anthropic.protocol import MessagesRequest
from runtime.server.generate.protocol import GenerateRequest
from runtime.server.openai.protocol import ChatRequest, CompletionRequest
from runtime.server.openai.responses_protocol import ResponsesRequest
from runtime.server.serving.request_body import ignored_fields, parse_body
from tests.server.dialects import CHAT, MESSAGES, RESPONSES, ask, read, request
from tests.server.harness import ServerProcess

SCHEMA = {
    "type": "object", "properties": {"zip": {"type": "integer"}}, "required": ["zip"], "additionalProperties": False,
}  # fmt: skip
ASKED = "Write JSON for a person named Bob."
# The model of each route, and the path of the format.
ROUTES: dict[str, tuple[Any, str]] = {
    CHAT: (ChatRequest, "response_format"), "/v1/completions": (CompletionRequest, "response_format"),
    "/generate": (GenerateRequest, "response_format"), RESPONSES: (ResponsesRequest, "text.format"),
    MESSAGES: (MessagesRequest, "output_config.format"),
}  # fmt: skip
NESTED = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
FLAT = {"type": "json_schema", "name": "s", "schema": SCHEMA}


@pytest.fixture(scope="module")
def server(demo: ServerProcess) -> ServerProcess:
    return demo


def body(route: str, form: Any, **more: Any) -> dict[str, Any]:
    outer, _, inner = ROUTES[route][1].partition(".")
    fields = {outer: {inner: form} if inner else form, "model": None, **more}
    if route in (CHAT, RESPONSES, MESSAGES):
        return request(route, ASKED, max_tokens=40, **fields)
    return {"prompt": ASKED, "max_tokens": 40, **fields}


def text(client: httpx.Client, route: str, asked: dict[str, Any]) -> str:
    answer = client.post(route, json=asked)
    assert answer.status_code == 200, answer.text
    assert "x-unmask-ignored" not in answer.headers
    if route in (CHAT, RESPONSES, MESSAGES):
        return read(route, answer.text, stream=False).content
    made = answer.json()
    return str(made["text"] if route == "/generate" else made["choices"][0]["text"])


@pytest.mark.parametrize(
    ("route", "form"),
    [
        *((route, NESTED) for route in ROUTES),
        (CHAT, FLAT),
        (CHAT, {"type": "json_object", "schema": SCHEMA}),
        (CHAT, {"type": "json_object", "schema": json.dumps(SCHEMA)}),
    ],
)
def test_a_schema_is_enforced_in_every_notation(client: httpx.Client, route: str, form: dict[str, Any]) -> None:
    value = json.loads(text(client, route, body(route, form)))
    assert list(value) == ["zip"]
    assert type(value["zip"]) is int


def test_a_nullable_field_may_be_null(client: httpx.Client) -> None:
    nothing = {"type": "string", "nullable": True, "enum": [None]}  # the type null in OpenAPI 3.0
    schema = {**SCHEMA, "properties": {"zip": nothing}}
    for asked in (
        body(CHAT, {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}),
        body(CHAT, {"type": "text"}, structured_outputs={"json": schema}),
    ):
        assert json.loads(text(client, CHAT, asked)) == {"zip": None}


def test_a_streamed_answer_conforms_to_the_schema(client: httpx.Client) -> None:
    assert list(json.loads(ask(client, CHAT, body(CHAT, FLAT), stream=True).content)) == ["zip"]


@pytest.mark.parametrize("schema", [{}, {"description": "anything"}, True, None])
def test_a_schema_without_a_type_gives_an_object(client: httpx.Client, schema: Any) -> None:
    asked = body(CHAT, {"type": "json_object", "schema": schema}, temperature=1, seed=3)
    assert text(client, CHAT, asked).startswith("{")


@pytest.mark.parametrize("schema", [3, [], "no JSON", False, {"type": "object", "not": {}}])
def test_an_invalid_or_unsupported_schema_is_refused(client: httpx.Client, schema: Any) -> None:
    refused = client.post(CHAT, json=body(CHAT, {"type": "json_object", "schema": schema}))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "response_format")


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ({"type": "json_object", "schemas": SCHEMA, "b": None}, ["schemas"]),
        ({"type": "json_object", "json_schema": {"schema": SCHEMA}}, ["json_schema"]),
        ({"type": "text", "schema": SCHEMA}, ["schema"]),
        ({"type": "json_schema", "extra": 1, "json_schema": {"name": "s", "schema": SCHEMA, "stricter": True}},
         ["extra", "json_schema.stricter"]),
        ({**FLAT, "stricter": True}, ["stricter"]),
        ({"type": "json_schema", "json_schema": {}, "schema": SCHEMA, "stricter": True}, ["stricter"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("route", ROUTES)
def test_unknown_keys_are_named(route: str, form: dict[str, Any], names: list[str]) -> None:
    kind, path = ROUTES[route]
    parsed = parse_body(kind, json.dumps(body(route, form)).encode())
    assert ignored_fields(parsed) == [f"{path}.{name}" for name in names]


def test_the_earlier_name_of_a_messages_format_is_read(client: httpx.Client) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    assert list(json.loads(text(client, MESSAGES, body(MESSAGES, None, output_format=form)))) == ["zip"]
    assert client.post(MESSAGES, json=body(MESSAGES, form, output_format=form)).status_code == 200
    extended = client.post(MESSAGES, json=body(MESSAGES, None, output_format={**form, "x": 1}))
    assert extended.headers["x-unmask-ignored"] == "output_format.x"
