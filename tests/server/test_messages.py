"""``POST /v1/messages`` with the unmodified ``anthropic`` client: objects, event sequences, history, errors, keys."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from tests.server.harness import ServerProcess, serving, sse_events
from tests.wait import TIMEOUT

USER = {"role": "user", "content": "hello"}
BODY: dict[str, Any] = {"model": "tiny", "messages": [USER], "max_tokens": 24}
KEY = "0123456789abcdef"


@pytest.fixture(scope="module")
def claude(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=TIMEOUT) as claude:
        yield claude


def chat(client: httpx.Client, messages: list[Any], **more: Any) -> Any:
    body = {"model": "tiny", "messages": messages, "max_tokens": 24, **more}
    return client.post("/v1/chat/completions", json=body).json()


def test_an_answer_equals_that_of_chat(claude: anthropic.Anthropic, client: httpx.Client) -> None:
    made = claude.messages.create(**BODY, system=[{"type": "text", "text": "be brief"}], metadata={"user_id": "me"})
    same = chat(client, [{"role": "system", "content": "be brief"}, USER])
    (block,) = made.content
    assert block.type == "text"
    assert block.text == same["choices"][0]["message"]["content"]
    assert (made.type, made.role, made.model, made.id[:4]) == ("message", "assistant", "tiny", "msg_")
    assert made.stop_reason == ("end_turn" if same["choices"][0]["finish_reason"] == "stop" else "max_tokens")
    usage = made.usage
    assert (usage.input_tokens or 0) + (usage.cache_read_input_tokens or 0) == same["usage"]["prompt_tokens"]
    assert usage.output_tokens == same["usage"]["completion_tokens"]
    counted = claude.messages.count_tokens(model="tiny", messages=[USER], system="be brief")
    assert counted.input_tokens == same["usage"]["prompt_tokens"]


def test_the_events_of_a_stream(client: httpx.Client) -> None:
    body = {**BODY, "ignore_eos": True}
    complete = client.post("/v1/messages", json=body).json()
    events = sse_events(client.post("/v1/messages", json={**body, "stream": True}).text)
    assert all(name == event["type"] for name, event in events)
    deltas = [event for name, event in events if name == "content_block_delta"]
    assert [name for name, _ in events] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * len(deltas),
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert len(deltas) >= 2
    start = events[0][1]["message"]
    assert start["content"] == []
    assert start["stop_reason"] is None
    assert events[1][1] == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert all(event["index"] == 0 and event["delta"]["type"] == "text_delta" for event in deltas)
    assert "".join(event["delta"]["text"] for event in deltas) == complete["content"][0]["text"]
    ended = events[-2][1]
    assert ended["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert ended["usage"]["output_tokens"] == complete["usage"]["output_tokens"] == 24


def test_a_stream_with_the_client(claude: anthropic.Anthropic) -> None:
    complete = claude.messages.create(**BODY)
    with claude.messages.stream(**BODY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == complete.content[0].text
    assert final.stop_reason == complete.stop_reason
    assert final.usage.output_tokens == complete.usage.output_tokens


def test_the_stop_sequence_that_ended_an_answer_is_named(claude: anthropic.Anthropic) -> None:
    text = claude.messages.create(**BODY).content[0].text
    stop = text[5:7]
    cut = claude.messages.create(**BODY, stop_sequences=["\u00e9\u00e9", stop])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert cut.content[0].text == text[: text.index(stop)]
    with claude.messages.stream(**BODY, stop_sequences=[stop]) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", stop)
    assert final.content[0].text == cut.content[0].text
    empty = claude.messages.create(**BODY, stop_sequences=[text[0]])
    assert empty.content == []


def test_history_is_converted_as_in_chat(claude: anthropic.Anthropic, client: httpx.Client) -> None:
    first = claude.messages.create(**BODY)
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            *first.content,
            {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "2"}]},
            {"type": "text", "text": "and?"},
        ]},
    ]  # fmt: skip
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    answer = {"role": "assistant", "content": first.content[0].text, "reasoning_content": "hm", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "2"}
    same = chat(client, [USER, answer, result, {"role": "user", "content": "and?"}])
    made = claude.messages.create(**{**BODY, "messages": messages})
    assert made.content[0].text == same["choices"][0]["message"]["content"]
    assert made.usage.input_tokens + (made.usage.cache_read_input_tokens or 0) == same["usage"]["prompt_tokens"]


def test_structured_text(claude: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"on": {"const": True}}, "required": ["on"],
              "additionalProperties": False}  # fmt: skip
    made = claude.messages.create(**BODY, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert json.loads(made.content[0].text) == {"on": True}
    assert made.stop_reason == "end_turn"


def test_fields_without_effect_are_accepted(client: httpx.Client) -> None:
    base = client.post("/v1/messages", json=BODY).json()
    neutral = {
        "service_tier": "auto", "thinking": {"type": "disabled"}, "output_config": {"effort": "low"},
        "tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "none"}, "mcp_servers": [],
        "cache_control": {"type": "ephemeral"},
    }  # fmt: skip
    taken = client.post("/v1/messages", json={**BODY, **neutral}, headers={"anthropic-version": "2023-06-01"})
    assert taken.status_code == 200, taken.text
    assert taken.json()["content"] == base["content"]
    assert "x-unmask-ignored" not in taken.headers


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ({"messages": []}, "messages: must be a list of at least one message"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "messages[0].role: "),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
         "messages[0].content[0]: image blocks are not supported, only text"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}]},
         "messages[0].content[0]: a user's turn has no tool_use blocks"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "1"}]}, USER]},
         "messages[0].content[0]: only a user's turn has tool_result blocks"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
         "messages[0].content[0]: tool_result blocks need tool_use_id"),
        ({"system": [{"type": "tool_result", "tool_use_id": "1"}]},
         "system[0]: tool_result blocks are not supported here"),
        ({"max_tokens": 0}, "max_tokens: 0 is out of range"),
        ({"stop_sequences": [""]}, "stop_sequences: an empty string"),
        ({"stop_sequences": ["a"], "stop": "b"}, "stop: is stop_sequences here"),
        ({"container": "c"}, "container: is not supported"),
        ({"mcp_servers": [{}]}, "mcp_servers: is not supported"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format: "),
        ({"decoding": {"wibble": 1}}, "decoding: 'wibble' is no decoding field"),
    ],
)  # fmt: skip
def test_invalid_fields_are_named_in_an_error_of_anthropics_form(
    client: httpx.Client, field: dict[str, Any], says: str
) -> None:
    refused = client.post("/v1/messages", json={**BODY, **field})
    assert refused.status_code == 400, refused.text
    error = refused.json()
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert error["error"]["message"].startswith(says)


def test_every_error_of_the_route_has_anthropics_form(claude: anthropic.Anthropic, client: httpx.Client) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        claude.messages.create(**{**BODY, "model": "nope"})
    assert unknown.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    refused = [client.get("/v1/messages"), client.post("/v1/messages/nope"), client.post("/v1/messages", content=b"{")]
    assert [answer.status_code for answer in refused] == [405, 404, 400]
    assert all(answer.json()["type"] == "error" for answer in refused)
    large = client.post("/v1/messages", content=b"{" + b" " * 2**21)
    assert (large.status_code, large.json()["error"]["type"]) == (413, "request_too_large")
    assert "error" in client.post("/v1/nope").json()
    assert "type" not in client.post("/v1/nope").json()


def test_a_key_in_the_header_of_anthropics_client_is_accepted(checkpoint: Path) -> None:
    arguments = ("--model", str(checkpoint), "--served-model-name", "tiny")
    with serving(*arguments, env={"UNMASK_API_KEY": KEY}) as server:
        for key in ({"api_key": KEY}, {"auth_token": KEY}):
            with anthropic.Anthropic(base_url=server.url, max_retries=0, **key) as claude:
                assert claude.messages.create(**BODY).content
        with anthropic.Anthropic(base_url=server.url, max_retries=0, api_key="wrong") as claude:
            with pytest.raises(anthropic.AuthenticationError) as wrong:
                claude.messages.create(**BODY)
            assert wrong.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
        with server.client() as client:
            assert client.post("/v1/messages", json=BODY).status_code == 401
            assert client.get("/v1/models", headers={"x-api-key": KEY}).status_code == 200
            # a wrong bearer key is refused even with the right key in the other header
            both = {"x-api-key": KEY, "authorization": "Bearer wrong"}
            assert client.get("/v1/models", headers=both).status_code == 401


def test_a_failure_in_the_middle_of_a_stream_is_an_event(fake: ServerProcess) -> None:
    body = {**BODY, "stream": True, "cache_salt": "fail"}
    with fake.client() as client:
        *_, (name, last) = sse_events(client.post("/v1/messages", json=body).text)
    assert name == last["type"] == "error"
    assert last["error"]["type"] == "api_error"
    salt = {"cache_salt": "fail"}
    with (
        anthropic.Anthropic(base_url=fake.url, api_key="none", max_retries=0) as claude,
        pytest.raises(anthropic.APIStatusError),
        claude.messages.stream(**BODY, extra_body=salt) as stream,
    ):
        stream.until_done()


def test_a_client_that_disconnects_ends_its_answer(fake: ServerProcess) -> None:
    fake.until_idle()
    endless = {"model": "tiny", "messages": [USER], "cache_salt": "endless"}
    for stream in (True, False):
        data = json.dumps({**endless, "stream": stream}).encode()
        head = f"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", fake.port), timeout=TIMEOUT) as connection:
            connection.sendall(head.encode() + data)
            fake.until(lambda: not fake.idle())
        fake.until_idle()


def test_a_stream_reports_the_same_input_usage_at_its_start_and_end(client: httpx.Client) -> None:
    body = {**BODY, "messages": [{"role": "user", "content": "the same long words " * 20}]}
    for _ in range(2):  # the second finds the first's prompt in the cache
        events = sse_events(client.post("/v1/messages", json={**body, "stream": True}).text)
        begun, ended = events[0][1]["message"]["usage"], events[-2][1]["usage"]
        names = ("input_tokens", "cache_read_input_tokens")
        assert [begun[name] for name in names] == [ended[name] for name in names]
    assert ended["cache_read_input_tokens"] > 0


@pytest.mark.parametrize(("name", "value"), [("response_format", {"type": "json_object"}), ("stream_mode", "denoise")])
def test_fields_of_other_routes_are_refused(client: httpx.Client, name: str, value: Any) -> None:
    refused = client.post("/v1/messages", json={**BODY, name: value})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith(f"{name}: ")


def test_stream_options_of_openai_are_ignored_and_named(client: httpx.Client) -> None:
    answer = client.post("/v1/messages", json={**BODY, "stream_options": {"include_usage": True}})
    assert answer.status_code == 200
    assert "stream_options" in answer.headers["X-Unmask-Ignored"]
