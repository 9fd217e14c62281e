"""Tests of tool calls and reasoning of /v1/responses and /v1/messages, over scripted answers in random pieces."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.server.harness import ServerProcess, sse_events

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"type": "function", "name": "weather", "description": "Tells it.", "parameters": CITY}
TOOL = {"name": "weather", "description": "Tells it.", "input_schema": CITY}
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
THOUGHT = f"<think>\nA city.\n</think>\n\nSo:\n{CALL}\n{CALL.replace('Zürich', 'Rome')}"


@pytest.fixture(scope="module")
def server(scripted: ServerProcess) -> ServerProcess:
    return scripted


def say(text: str) -> str:
    return "SAY:" + json.dumps(text)


def respond(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": say(text), **more}


def message(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": say(text)}], "max_tokens": 500, **more}


def bare(value: Any) -> Any:
    """Returns the value without ids, which differ between answers."""
    if isinstance(value, dict):
        return {name: bare(item) for name, item in value.items() if name not in ("id", "call_id", "item_id")}
    return [bare(item) for item in value] if isinstance(value, list) else value


ITEMS = [
    {"type": "reasoning", "status": "completed", "summary": [],
     "content": [{"type": "reasoning_text", "text": "A city."}]},
    {"type": "message", "role": "assistant", "status": "completed",
     "content": [{"type": "output_text", "text": "So:", "annotations": [], "logprobs": []}]},
    {"type": "function_call", "status": "completed", "name": "weather", "arguments": '{"city": "Zürich"}'},
    {"type": "function_call", "status": "completed", "name": "weather", "arguments": '{"city": "Rome"}'},
]  # fmt: skip


def test_items_of_a_response(client: httpx.Client) -> None:
    body = respond(THOUGHT, tools=[FUNCTION])
    complete = client.post("/v1/responses", json=body).json()
    assert complete["status"] == "completed"
    assert bare(complete["output"]) == ITEMS
    assert len({item["id"] for item in complete["output"]}) == 4
    assert complete["output"][2]["call_id"].startswith("call_")
    assert complete["tools"] == [FUNCTION]
    assert complete["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    for seed in range(4):
        events = sse_events(client.post("/v1/responses", json={**body, "seed": seed, "stream": True}).text)
        assert bare(events[-1][1]["response"]["output"]) == ITEMS
        built: dict[int, str] = {}
        kinds: dict[int, str] = {}
        for name, event in events:
            at = event.get("output_index")
            if name == "response.output_item.added":
                kinds[at] = event["item"]["type"]
                built[at] = ""
            elif name.endswith(".delta"):
                built[at] += event["delta"]
            elif name == "response.output_item.done":
                assert event["item"] == events[-1][1]["response"]["output"][at]
        assert list(kinds.values()) == [item["type"] for item in ITEMS]
        assert list(built.values()) == ["A city.", "So:", '{"city": "Zürich"}', '{"city": "Rome"}']
    names = [name for name, event in events if event.get("output_index") == 2 and not name.endswith(".delta")]
    assert names == [
        "response.output_item.added",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]


BLOCKS = [
    {"type": "thinking", "thinking": "A city.", "signature": ""},
    {"type": "text", "text": "So:"},
    {"type": "tool_use", "name": "weather", "input": {"city": "Zürich"}},
    {"type": "tool_use", "name": "weather", "input": {"city": "Rome"}},
]


def test_blocks_of_a_message(client: httpx.Client) -> None:
    body = message(THOUGHT, tools=[TOOL])
    complete = client.post("/v1/messages", json=body).json()
    assert complete["stop_reason"] == "tool_use"
    assert bare(complete["content"]) == BLOCKS
    for seed in range(4):
        events = sse_events(client.post("/v1/messages", json={**body, "seed": seed, "stream": True}).text)
        built: list[str] = []
        for name, event in events:
            if name == "content_block_start":
                assert event["index"] == len(built)
                built.append("")
            elif name == "content_block_delta":
                assert event["index"] == len(built) - 1
                _, piece = event["delta"].values()
                built[-1] += piece
        assert built == ["A city.", "So:", '{"city": "Zürich"}', '{"city": "Rome"}']
        assert events[-2][1]["delta"]["stop_reason"] == "tool_use"


def test_the_openai_client_sends_a_result_of_a_call(scripted: ServerProcess) -> None:
    with openai.OpenAI(base_url=f"{scripted.url}/v1", api_key="none", max_retries=0) as ai:
        with ai.responses.stream(**respond(CALL, tools=[FUNCTION])) as stream:
            first = stream.get_final_response()
        (call,) = first.output
        assert call.type == "function_call"
        assert json.loads(call.arguments) == {"city": "Zürich"}
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "12 degrees"}
        history = [{"role": "user", "content": say(CALL)}, *first.output, result]
        last = ai.responses.create(
            model="tiny", tools=[FUNCTION], input=[*history, {"role": "user", "content": say("It is 12 degrees.")}]
        )
        assert last.output_text == "It is 12 degrees."


def test_the_anthropic_client_sends_a_result_of_a_call(scripted: ServerProcess) -> None:
    with anthropic.Anthropic(base_url=scripted.url, api_key="none", max_retries=0) as claude:
        asked = message(CALL, tools=[TOOL])
        with claude.messages.stream(**asked) as stream:
            first = stream.get_final_message()
        (call,) = first.content
        assert call.type == "tool_use"
        assert call.input == {"city": "Zürich"}
        result = [{"type": "tool_result", "tool_use_id": call.id, "content": "12 degrees"},
                  {"type": "text", "text": say("It is 12 degrees.")}]  # fmt: skip
        asked["messages"] += [{"role": "assistant", "content": first.content}, {"role": "user", "content": result}]
        assert claude.messages.create(**asked).content[0].text == "It is 12 degrees."
        assert claude.messages.count_tokens(model="tiny", messages=asked["messages"], tools=[TOOL]).input_tokens > (
            claude.messages.count_tokens(model="tiny", messages=asked["messages"]).input_tokens
        )


def test_parallel_calls_can_be_disabled(client: httpx.Client) -> None:
    both = f"{CALL}\n{CALL}"
    one = client.post("/v1/responses", json=respond(both, tools=[FUNCTION], parallel_tool_calls=False)).json()
    assert len(one["output"]) == 1
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    one = client.post("/v1/messages", json=message(both, tools=[TOOL], tool_choice=choice)).json()
    assert len(one["content"]) == 1
    assert one["stop_reason"] == "tool_use"


def test_a_limit_in_the_middle_of_a_call_drops_the_call(client: httpx.Client) -> None:
    before = len(CALL[: CALL.index("rich")].encode()) - len("<tool_call>") + 1  # the tag is one token
    cut = client.post("/v1/responses", json=respond(CALL, tools=[FUNCTION], max_output_tokens=before)).json()
    assert cut["status"] == "incomplete"
    (item,) = cut["output"]
    assert (item["type"], item["status"], item["content"][0]["text"]) == ("message", "incomplete", "")
    cut = client.post("/v1/messages", json=message(CALL, tools=[TOOL]) | {"max_tokens": before}).json()
    assert cut["stop_reason"] == "max_tokens"
    assert cut["content"] == []


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("responses", {"tools": [{"type": "function"}]}, "tools[0].name: "),
        ("responses", {"tools": [FUNCTION, FUNCTION]}, "tools[1].name: 'weather' is also that of tools[0]"),
        ("responses", {"tools": [{**FUNCTION, "parameters": {"type": "string"}}]}, "tools[0].parameters: "),
        ("responses", {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice: "),
        ("responses", {"tool_choice": "required"}, "tool_choice: requires a call, but there are no tools"),
        ("responses", {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
         "input[0]: is a tool result without an assistant message that calls a tool before it"),
        ("messages", {"tools": [{"input_schema": {"type": "object"}}]}, "tools[0].name: "),
        ("messages", {"tools": [TOOL, TOOL]}, "tools[1].name: 'weather' is also that of tools[0]"),
        ("messages", {"tools": [{**TOOL, "input_schema": {"type": "string"}}]}, "tools[0].input_schema: "),
        ("messages", {"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name: "),
        ("messages", {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice: 'x' is not"),
        ("messages", {"messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c2", "content": "x"}]},
        ]}, "messages[2].content[0].tool_use_id: 'c2' is not the id of an earlier call"),
    ],
)  # fmt: skip
def test_invalid_tools_are_refused(client: httpx.Client, path: str, body: dict[str, Any], says: str) -> None:
    asked = respond("x") if path == "responses" else message("x")
    refused = client.post(f"/v1/{path}", json={**asked, **body})
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["message"].startswith(says)


@pytest.mark.parametrize("value", ['"\\ud800"', "[" * 62 + "]" * 62])
@pytest.mark.parametrize("stream", [False, True])
def test_arguments_with_surrogates_or_deep_nesting_are_answered(client: httpx.Client, value: str, stream: bool) -> None:
    arguments = f'{{"city": {value}}}'
    call = f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>'
    answer = client.post("/v1/messages", json=message(call, tools=[TOOL], stream=stream))
    assert answer.status_code == 200, answer.text
    if stream:
        assert sse_events(answer.text)[-1][0] == "message_stop"
    else:
        (block,) = answer.json()["content"]
        assert block["input"] == json.loads(arguments)
