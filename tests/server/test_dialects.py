"""``/v1/responses`` and ``/v1/messages`` with the clients of their vendors: objects, events, errors."""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.server.dialects import CHAT, MESSAGES, RESPONSES
from tests.server.harness import KEY, ServerProcess, sse_events
from tests.wait import TIMEOUT

USER = {"role": "user", "content": "hello"}
INPUT: dict[str, Any] = {"model": "tiny", "input": "hello", "max_output_tokens": 24}
TURNS: dict[str, Any] = {"model": "tiny", "messages": [USER], "max_tokens": 24}


@pytest.fixture(scope="module")
def claude(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=TIMEOUT) as claude:
        yield claude


@pytest.fixture(scope="module")
def chat(client: httpx.Client) -> dict[str, Any]:
    """Returns the answer of a chat to the same conversation."""
    messages = [{"role": "system", "content": "be brief"}, USER]
    answer = client.post(CHAT, json={"messages": messages, "max_tokens": 24}).json()
    return {"usage": answer["usage"], **answer["choices"][0]}


def test_a_response_equals_the_answer_of_chat(ai: openai.OpenAI, chat: dict[str, Any]) -> None:
    made = ai.responses.create(**INPUT, instructions="be brief", metadata={"a": "b"})
    assert made.output_text == chat["message"]["content"]
    assert (made.object, made.id[:5]) == ("response", "resp_")
    assert (made.model, made.instructions, made.metadata) == ("tiny", "be brief", {"a": "b"})
    assert made.status == ("completed" if chat["finish_reason"] == "stop" else "incomplete")
    (item,) = made.output
    assert (item.type, item.role, item.status) == ("message", "assistant", made.status)
    assert made.usage
    assert made.usage.input_tokens == chat["usage"]["prompt_tokens"]
    assert made.usage.output_tokens == chat["usage"]["completion_tokens"]
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens


def test_a_message_equals_the_answer_of_chat(claude: anthropic.Anthropic, chat: dict[str, Any]) -> None:
    made = claude.messages.create(**TURNS, system="be brief", metadata={"user_id": "me"})
    (block,) = made.content
    assert (block.type, block.text) == ("text", chat["message"]["content"])
    assert (made.type, made.role, made.model, made.id[:4]) == ("message", "assistant", "tiny", "msg_")
    assert made.stop_reason == ("end_turn" if chat["finish_reason"] == "stop" else "max_tokens")
    prompt = chat["usage"]["prompt_tokens"]
    assert (made.usage.input_tokens or 0) + (made.usage.cache_read_input_tokens or 0) == prompt
    assert made.usage.output_tokens == chat["usage"]["completion_tokens"]
    assert claude.messages.count_tokens(model="tiny", messages=[USER], system="be brief").input_tokens == prompt


def test_the_events_of_a_response(client: httpx.Client) -> None:
    body = {**INPUT, "ignore_eos": True}
    full = client.post(RESPONSES, json=body).json()
    assert full["incomplete_details"] == {"reason": "max_output_tokens"}
    events_with_names = sse_events(client.post(RESPONSES, json={**body, "stream": True}).text)
    assert all(name == event["type"] for name, event in events_with_names)
    events = [event for _, event in events_with_names]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert len(deltas) >= 2
    begun = ["created", "in_progress", "output_item.added", "content_part.added"]
    ended = ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    names = [*begun, *["output_text.delta"] * len(deltas), *ended]
    assert [event["type"] for event in events] == [f"response.{name}" for name in names]
    text = full["output"][0]["content"][0]["text"]
    assert "".join(event["delta"] for event in deltas) == text
    for event in (events[-4], events[-3]["part"], events[-2]["item"]["content"][0]):
        assert event["text"] == text
    (item,) = events[-1]["response"]["output"]
    assert {event["item_id"] for event in deltas} == {item["id"]}
    varying = ("id", "created_at", "output", "usage")
    first, last = events[0]["response"], events[-1]["response"]
    assert {**last, **dict.fromkeys(varying)} == {**full, **dict.fromkeys(varying)}
    assert last["usage"]["output_tokens"] == full["usage"]["output_tokens"] == 24
    begins = {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    assert first == {**last, **begins}
    empty = {**INPUT, "stop": text[0], "stream": True}
    names = [name for name, _ in sse_events(client.post(RESPONSES, json=empty).text)]
    assert names == [f"response.{name}" for name in [*begun, *ended[:-1], "completed"]]


def test_the_events_of_a_message(client: httpx.Client) -> None:
    body = {**TURNS, "ignore_eos": True}
    complete = client.post(MESSAGES, json=body).json()
    events = sse_events(client.post(MESSAGES, json={**body, "stream": True}).text)
    assert all(name == event["type"] for name, event in events)
    deltas = [event for name, event in events if name == "content_block_delta"]
    assert len(deltas) >= 2
    names = ["message_start", "content_block_start", *["content_block_delta"] * len(deltas)]
    assert [name for name, _ in events] == [*names, "content_block_stop", "message_delta", "message_stop"]
    start = events[0][1]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert events[1][1] == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert all(event["index"] == 0 and event["delta"]["type"] == "text_delta" for event in deltas)
    assert "".join(event["delta"]["text"] for event in deltas) == complete["content"][0]["text"]
    ended = events[-2][1]
    assert ended["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert ended["usage"]["output_tokens"] == complete["usage"]["output_tokens"] == 24


def test_the_clients_read_streams(ai: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    full = ai.responses.create(**INPUT, extra_body={"stop": ["$"]})
    with ai.responses.stream(**INPUT, extra_body={"stop": ["$"]}) as events:
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == full.output_text
    complete = claude.messages.create(**TURNS)
    with claude.messages.stream(**TURNS) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == complete.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (complete.stop_reason, complete.usage.output_tokens)


def test_the_stop_sequence_that_ended_a_message_is_named(claude: anthropic.Anthropic) -> None:
    text = claude.messages.create(**TURNS).content[0].text
    stop = text[5:7]
    cut = claude.messages.create(**TURNS, stop_sequences=["\u00e9\u00e9", stop])
    with claude.messages.stream(**TURNS, stop_sequences=[stop]) as stream:
        final = stream.get_final_message()
    for made in (cut, final):
        assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", stop)
        assert made.content[0].text == text[: text.index(stop)]


def test_a_stream_reports_the_same_input_usage_at_its_start_and_end(client: httpx.Client) -> None:
    body = {**TURNS, "messages": [{"role": "user", "content": "the same long words " * 20}], "stream": True}
    for _ in range(2):  # the second finds the first's prompt in the cache
        events = sse_events(client.post(MESSAGES, json=body).text)
        begun, ended = events[0][1]["message"]["usage"], events[-2][1]["usage"]
        names = ("input_tokens", "cache_read_input_tokens")
        assert [begun[name] for name in names] == [ended[name] for name in names]
    assert ended["cache_read_input_tokens"] > 0


def test_every_error_of_messages_has_anthropics_form(claude: anthropic.Anthropic, client: httpx.Client) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        claude.messages.create(**{**TURNS, "model": "nope"})
    assert unknown.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    refused = [client.get(MESSAGES), client.post(f"{MESSAGES}/nope"), client.post(MESSAGES, content=b"{")]
    assert [answer.status_code for answer in refused] == [405, 404, 400]
    assert all(answer.json()["type"] == "error" for answer in refused)
    large = client.post(MESSAGES, content=b"{" + b" " * 2**21)
    assert (large.status_code, large.json()["error"]["type"]) == (413, "request_too_large")
    assert client.post("/v1/nope").json().keys() == {"error"}


def test_a_key_in_the_header_of_anthropics_client_is_accepted(keyed: ServerProcess) -> None:
    for key in ({"api_key": KEY}, {"auth_token": KEY}):
        with anthropic.Anthropic(base_url=keyed.url, max_retries=0, **key) as claude:
            assert claude.messages.create(**TURNS).content
    with anthropic.Anthropic(base_url=keyed.url, max_retries=0, api_key="wrong") as claude:
        with pytest.raises(anthropic.AuthenticationError) as wrong:
            claude.messages.create(**TURNS)
        assert wrong.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
    with keyed.client() as client:
        assert client.post(MESSAGES, json=TURNS).status_code == 401
        assert client.get("/v1/models", headers={"x-api-key": KEY}).status_code == 200
        # a wrong bearer key is refused even with the right key in the other header
        both = {"x-api-key": KEY, "authorization": "Bearer wrong"}
        assert client.get("/v1/models", headers=both).status_code == 401


def test_a_failure_in_the_middle_of_a_stream_is_an_event(fake: ServerProcess) -> None:
    failing = {"cache_salt": "fail"}
    with fake.client() as client:
        *_, (name, last) = sse_events(client.post(RESPONSES, json={**INPUT, **failing, "stream": True}).text)
        assert (name, last["response"]["status"]) == ("response.failed", "failed")
        assert client.post(RESPONSES, json={**INPUT, **failing}).status_code == 500
        *_, (name, last) = sse_events(client.post(MESSAGES, json={**TURNS, **failing, "stream": True}).text)
        assert (name, last["type"], last["error"]["type"]) == ("error", "error", "api_error")
    with (
        anthropic.Anthropic(base_url=fake.url, api_key="none", max_retries=0) as claude,
        pytest.raises(anthropic.APIStatusError),
        claude.messages.stream(**TURNS, extra_body=failing) as stream,
    ):
        stream.until_done()
