"""Tests that the log of refused requests has the field and a length, and no text of the client."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtime.errors import RequestError
from runtime.request.decoding import check_beside_decoding
from runtime.request.validation import preview
from runtime.server.logs import field_path, redacted
from runtime.server.openai.protocol import ChatRequest, parse_tool_choice
from runtime.server.serving.request_body import parse_body
from tests.server.harness import FAKE, serving

SECRET = "swordfish"


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (RequestError("model: 'x y' is not served here", param="model"), "model: <3 characters> is not served here"),
        (RequestError('a: "it\'s" is no b; give c', param="a"), "a: <4 characters> is no b; give c"),
        (RequestError("the model's chat template cannot", param="messages"), "the model's chat template cannot"),
        (RequestError("a: 'cut off..."), "a: <10 characters>"),
        (RequestError("a: 'it\\'s' is no b"), "a: <5 characters> is no b"),
        (RequestError("metadata.a key: is too long", param="metadata.a key"), "metadata.<5 characters>: is too long"),
        (RequestError("tools[0].function.name: 7 is no name", param="tools[0].function.name"),
         "tools[0].function.name: 7 is no name"),
        (RequestError("a: cannot be applied: lark says no", param="a", detail="lark says no"),
         "a: cannot be applied: <12 characters>"),
        (RequestError("a: 'x y' is no b; use 'b' or \"c\"", param="a", own="'b' or \"c\""),
         "a: <3 characters> is no b; use 'b' or \"c\""),
        (RequestError("a: '\"b\" x' is no b; use \"b\"", param="a", own='"b"'), 'a: <4 characters> is no b; use "b"'),
        (RequestError("X-Request-Id: must be short", param="X-Request-Id"), "X-Request-Id: must be short"),
    ],
)  # fmt: skip
def test_text_of_a_client_is_replaced_by_its_length(error: RequestError, logged: str) -> None:
    assert redacted(error) == logged


@pytest.mark.parametrize(
    ("body", "logged"),
    [
        ('{"messages": [{"role": "swordfish"}]}',
         "messages[0].role: Input should be 'system', 'developer', 'user', 'assistant', 'tool' or 'function'"),
        ('{"messages": "swordfish"}',
         'messages: Input should be an array; for example [{"role":"user","content":"Solve: 12 + 30."}]'),
        ('{"messages": ["swordfish"]}',
         'messages[0]: Input should be an object; for example {"role":"user","content":"Solve: 12 + 30."}'),
        ('{"messages": [{"role": "user", "content": ["swordfish"]}]}',
         "messages[0].content[0]: Input should be an object"),
        ('{"messages": [{"role": "user", "content": 1}]}',
         'messages[0].content: Input should be a valid string; for example "Hello!"'),
        ('{"messages": [], "max_tokens": "swordfish"}',
         "max_tokens: Input should be a valid integer; for example 64"),
        ('{"messages": swordfish}', "the body is not JSON: expected value at line 1 column 14"),
        ('{"messages": [{"role" 1}]}', "the body is not JSON: expected `:` at line 1 column 23"),
        ('{"messages": [{"role": "user", "content": "x"}], "tool_choice": "swordfish"}',
         'tool_choice: <9 characters> is not supported; use none, auto, required or {"type": "function", "function": '
         '{"name": ...}}'),
    ],
)  # fmt: skip
def test_words_of_the_server_stay(body: str, logged: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_tool_choice(parse_body(ChatRequest, body.encode()).tool_choice)
    assert redacted(refused.value) == logged


def test_the_place_of_a_decoding_field_stays() -> None:
    with pytest.raises(RequestError) as refused:
        check_beside_decoding(["mode"], cast(Any, SimpleNamespace(algorithms=[], strategy_fields=[])))
    assert redacted(refused.value) == 'mode: is a field of decoding; send {"decoding": {"mode": ...}}'


@pytest.mark.parametrize(
    "value", [SECRET, [SECRET], {SECRET: 1}, {"a": SECRET * 99}, f"'{SECRET}", f"\"{SECRET}'", f"\\'{SECRET}"]
)
def test_every_form_of_a_value_is_hidden(value: object) -> None:
    assert SECRET not in redacted(RequestError(f"field: {preview(value)} is wrong", param="field"))


def test_a_path_keeps_names_and_indices() -> None:
    assert field_path("tools[0].function.parameters") == "tools[0].function.parameters"
    assert field_path("a.b c.d") == "a.<3 characters>.d"
    assert field_path("x" * 41) == "<41 characters>"
    assert field_path(".".join("a" * 17)) == "<33 characters>"


NAMED = {"tools": [{"type": "function", "function": {"name": SECRET}}]}
OTHER = {"type": "function", "function": {"name": "other"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [OTHER]}}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
WRONG: tuple[tuple[str, dict[str, Any]], ...] = (
    (TEXT, {"prompt": "x", "model": SECRET}), (TEXT, {"prompt": "x", "max_tokens": SECRET}),
    (TEXT, {"prompt": "x", "guided_regex": f"({SECRET}"}), (TEXT, {"prompt": "x", "decoding": {SECRET + " ": 1}}),
    (CHAT, {"messages": [{"role": SECRET, "content": "x"}]}),
    (CHAT, {**ASK, "tools": [{"type": "function", "function": {"name": SECRET + " "}}]}),
    (CHAT, {**ASK, "tool_choice": SECRET}), (CHAT, {**ASK, **NAMED, "tool_choice": OTHER}),
    (CHAT, {**ASK, **NAMED, "tool_choice": ALLOWED}),
    ("/v1/messages", {"max_tokens": 2, "messages": [{"role": SECRET, "content": "x"}]}),
    ("/generate", {"prompt": "x", "decoding": {"algorithm": SECRET}}),
)  # fmt: skip


def test_the_log_of_refused_requests_has_no_text_of_clients(checkpoint: Path) -> None:
    """Uses a separate server, because the log reports a limited number of refusals."""
    with serving("--model", str(checkpoint), module=FAKE) as server, server.client() as client:
        for path, body in WRONG:
            answer = client.post(path, json=body)
            assert answer.status_code in (400, 404), (path, body, answer.text)
        client.post(TEXT, content=f'{{"prompt": {SECRET}}}')
        server.until(lambda: server.log.count("rejected with") >= min(10, len(WRONG)))
        assert SECRET not in server.log
