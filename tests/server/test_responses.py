"""``POST /v1/responses`` with the unmodified ``openai`` client: objects, event sequences, history, refusals."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import openai
import pytest

from tests.server.harness import ServerProcess, sse_events
from tests.wait import TIMEOUT

BODY: dict[str, Any] = {"model": "tiny", "input": "hello", "max_output_tokens": 24}
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}}


def chat(client: httpx.Client, messages: list[Any], **more: Any) -> Any:
    body = {"model": "tiny", "messages": messages, "max_tokens": 24, **more}
    return client.post("/v1/chat/completions", json=body).json()


def test_an_answer_equals_that_of_chat(ai: openai.OpenAI, client: httpx.Client) -> None:
    made = ai.responses.create(**BODY, instructions="be brief", metadata={"a": "b"})
    same = chat(client, [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}])
    assert made.output_text == same["choices"][0]["message"]["content"]
    assert made.object == "response"
    assert made.id.startswith("resp_")
    assert (made.model, made.instructions, made.metadata) == ("tiny", "be brief", {"a": "b"})
    ended = same["choices"][0]["finish_reason"]
    assert made.status == ("completed" if ended == "stop" else "incomplete")
    (item,) = made.output
    assert (item.type, item.role, item.status) == ("message", "assistant", made.status)
    assert made.usage
    assert made.usage.input_tokens == same["usage"]["prompt_tokens"]
    assert made.usage.output_tokens == same["usage"]["completion_tokens"]
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens


def test_an_answer_that_is_cut_off_is_incomplete(client: httpx.Client) -> None:
    cut = client.post("/v1/responses", json={**BODY, "max_output_tokens": 5, "ignore_eos": True}).json()
    assert cut["status"] == "incomplete"
    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}
    assert cut["usage"]["output_tokens"] == 5


def test_the_events_of_a_stream(client: httpx.Client) -> None:
    body = {**BODY, "ignore_eos": True}
    full = client.post("/v1/responses", json=body).json()
    events_with_names = sse_events(client.post("/v1/responses", json={**body, "stream": True}).text)
    assert all(name == event["type"] for name, event in events_with_names)
    events = [event for _, event in events_with_names]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    names = [event["type"] for event in events]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * len(deltas),
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert len(deltas) >= 2
    text = full["output"][0]["content"][0]["text"]
    assert "".join(event["delta"] for event in deltas) == text
    for event in (events[-4], events[-3]["part"], events[-2]["item"]["content"][0]):
        assert event["text"] == text
    (item,) = events[-1]["response"]["output"]
    assert {event["item_id"] for event in deltas} == {item["id"]}
    varying = ("id", "created_at", "output")
    last = {name: value for name, value in events[-1]["response"].items() if name not in varying}
    assert last == {name: value for name, value in full.items() if name not in varying} | {"usage": last["usage"]}
    assert last["usage"]["output_tokens"] == full["usage"]["output_tokens"]
    assert events[0]["response"] == {**events[-1]["response"], "status": "in_progress", "output": [], "usage": None,
                                     "incomplete_details": None}  # fmt: skip


def test_a_stream_with_the_client(ai: openai.OpenAI, client: httpx.Client) -> None:
    full = ai.responses.create(**BODY, extra_body={"stop": ["$"]})
    text = ""
    with ai.responses.stream(**BODY, extra_body={"stop": ["$"]}) as stream:
        for event in stream:
            text += event.delta if event.type == "response.output_text.delta" else ""
    assert text == full.output_text


def test_an_answer_without_text_is_an_empty_message(client: httpx.Client) -> None:
    text = client.post("/v1/responses", json=BODY).json()["output"][0]["content"][0]["text"]
    body = {**BODY, "stop": text[0]}
    assert client.post("/v1/responses", json=body).json()["output"][0]["content"][0]["text"] == ""
    names = [name for name, _ in sse_events(client.post("/v1/responses", json={**body, "stream": True}).text)]
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


def test_history_is_converted_as_in_chat(ai: openai.OpenAI, client: httpx.Client) -> None:
    first = ai.responses.create(**BODY)
    items = [
        {"type": "message", "role": "developer", "content": "short"},
        {"role": "user", "content": [{"type": "input_text", "text": "hel"}, {"type": "input_text", "text": "lo"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        *[item.model_dump() for item in first.output],
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {"role": "user", "content": "and?"},
    ]
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    answer = {
        "role": "assistant",
        "content": first.output_text,
        "reasoning_content": "hm",
        "tool_calls": [call],
    }
    messages = [
        {"role": "developer", "content": "short"},
        {"role": "user", "content": "hello"},
        answer,
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "user", "content": "and?"},
    ]
    made = ai.responses.create(**{**BODY, "input": items})
    same = chat(client, messages)
    assert made.output_text == same["choices"][0]["message"]["content"]
    assert made.usage
    assert made.usage.input_tokens == same["usage"]["prompt_tokens"]


def test_structured_text(ai: openai.OpenAI, client: httpx.Client) -> None:
    # a model with random weights never ends a text by itself, so the schema forces all of it
    schema = {"type": "object", "properties": {"on": {"const": True}}, "required": ["on"],
              "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "name": "light", "schema": schema, "strict": True}
    made = ai.responses.create(**BODY, text={"format": form})
    assert json.loads(made.output_text) == {"on": True}
    assert made.status == "completed"
    wrong = client.post("/v1/responses", json={**BODY, "text": {"format": {"type": "xml"}}})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "text.format"


def test_fields_without_effect_are_accepted(client: httpx.Client) -> None:
    reference = client.post("/v1/responses", json=BODY).json()
    neutral = {
        "store": True, "truncation": "disabled", "background": False, "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low", "summary": "auto"}, "user": "me", "prompt_cache_key": "k", "top_logprobs": 0,
        "tools": [TOOL], "tool_choice": "none", "parallel_tool_calls": True, "service_tier": "auto",
        "text": {"format": {"type": "text"}, "verbosity": "medium"}, "previous_response_id": None,
    }  # fmt: skip
    taken = client.post("/v1/responses", json={**BODY, **neutral})
    assert taken.status_code == 200, taken.text
    assert taken.json()["output"][0]["content"] == reference["output"][0]["content"]
    assert taken.json()["store"] is False
    assert "x-unmask-ignored" not in taken.headers


@pytest.mark.parametrize(
    ("field", "param", "says"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "responses are not stored"),
        ({"conversation": "c"}, "conversation", "responses are not stored"),
        ({"prompt": {"id": "p"}}, "prompt", "prompts are not stored"),
        ({"background": True}, "background", "is not supported"),
        ({"truncation": "sometimes"}, "truncation", "'auto' or 'disabled'"),
        ({"include": ["file_search_call.results"]}, "include[0]", "reasoning.encrypted_content"),
        ({"include": ["reasoning.encrypted_content"] * 65}, "include", "at most 64 items"),
        ({"input": []}, "input", "at least one message"),
        ({"input": 3}, "input", "string"),
        ({"input": [{"role": "user"}]}, "input[0]", "message items need content"),
        ({"input": [{"role": "critic", "content": "x"}]}, "input[0].role", "'user'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         "input[0].content[0]", "input_image parts are not supported, only text"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "send the full item"),
        ({"input": [{"type": "computer_use", "call_id": "x"}]}, "input[0]", "are not supported, only message"),
        ({"input": [{"type": "function_call", "call_id": "x"}]}, "input[0]", "function_call items need name"),
        ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
        ({"max_output_tokens": 2**40}, "max_output_tokens", "out of range"),
        ({"max_tokens": 3}, "max_tokens", "is max_output_tokens here"),
        ({"input": "x" * 600}, "input", "the model's length"),
        ({"stream_options": {}}, "stream_options", "only with stream"),
        ({"decoding": {"wibble": 1}}, "decoding.wibble", "is no decoding field"),
    ],
)  # fmt: skip
def test_errors_name_the_field_and_the_cause(
    client: httpx.Client, field: dict[str, Any], param: str, says: str
) -> None:
    refused = client.post("/v1/responses", json={**BODY, **field})
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(param.partition(".")[0])
    assert says in error["message"]


def test_a_failure_in_the_middle_of_a_stream_is_an_event(fake: ServerProcess) -> None:
    body = {**BODY, "stream": True, "cache_salt": "fail"}
    with fake.client() as client:
        *_, (name, last) = sse_events(client.post("/v1/responses", json=body).text)
        full = client.post("/v1/responses", json={**body, "stream": False})
    assert name == "response.failed"
    assert last["response"]["status"] == "failed"
    assert "failed" in last["response"]["error"]["message"]
    assert full.status_code == 500


def test_a_client_that_disconnects_ends_its_answer(fake: ServerProcess) -> None:
    fake.until_idle()
    endless = {"model": "tiny", "input": "long", "cache_salt": "endless"}
    for stream in (True, False):
        data = json.dumps({**endless, "stream": stream}).encode()
        head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", fake.port), timeout=TIMEOUT) as connection:
            connection.sendall(head.encode() + data)
            fake.until(lambda: not fake.idle())
        fake.until_idle()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("response_format", {"type": "json_object"}, "use text.format"), ("stream_mode", "denoise", "is not supported")],
)
def test_fields_of_other_routes_are_refused(client: httpx.Client, name: str, value: Any, message: str) -> None:
    refused = client.post("/v1/responses", json={**BODY, name: value, "stream": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
    assert message in refused.text
    assert client.post("/v1/responses", json={**BODY, name: None}).status_code == 200
