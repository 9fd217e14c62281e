"""The chat APIs behind one interface: requests with scripted answers, and the answers as clients read them."""

import json
from typing import Any, NamedTuple

import httpx

from tests.server.harness import sse, sse_events

CHAT, RESPONSES, MESSAGES = ROUTES = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
CITY = {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False,
}  # fmt: skip
NO_PARAMETERS = {"type": "object", "properties": {}}
# The names that differ from those of chat completions.
_NAMES: dict[str, dict[str, str]] = {
    CHAT: {},
    RESPONSES: {"messages": "input", "max_tokens": "max_output_tokens"},
    MESSAGES: {"stop": "stop_sequences"},
}
_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


class Answer(NamedTuple):
    """What a client reads. `calls` are names with arguments, and `reason` is that of chat completions."""

    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str = ""
    reason: str = "stop"


def say(text: str) -> str:
    """Returns a message to which the scripted engine answers `text`."""
    return "SAY:" + json.dumps(text)


def call(name: str = "weather", **arguments: Any) -> str:
    """Returns a call as the model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def tool(route: str, name: str = "weather", parameters: Any = CITY, **more: Any) -> dict[str, Any]:
    if route == MESSAGES:
        return {"name": name, "input_schema": parameters, **more}
    function = {"name": name, "parameters": parameters, **more}
    return {"type": "function", **function} if route == RESPONSES else {"type": "function", "function": function}


def request(route: str, messages: str | list[Any], **fields: Any) -> dict[str, Any]:
    """Returns a request with a message of the user, or with a history. `fields` have the names of chat completions."""
    history = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    if route == MESSAGES:
        fields = {"max_tokens": 500, **fields}
        if fields.pop("parallel_tool_calls", True) is False:
            fields["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
    return {"model": "tiny"} | {_NAMES[route].get(k, k): v for k, v in {"messages": history, **fields}.items()}


def ask(client: httpx.Client, route: str, body: dict[str, Any], stream: bool = False) -> Answer:
    response = client.post(route, json={**body, "stream": stream})
    assert response.status_code == 200, response.text
    return read(route, response.text, stream)


def read(route: str, text: str, stream: bool) -> Answer:
    """Returns the only answer in a response."""
    if route == CHAT:
        (answer,) = read_choices(text, stream)
        return answer
    return (_read_response if route == RESPONSES else _read_message)(text, stream)


def read_choices(text: str, stream: bool) -> list[Answer]:
    """Returns the choices of a chat completion."""
    if not stream:
        return [_choice(choice["message"], choice["finish_reason"]) for choice in json.loads(text)["choices"]]
    *chunks, last = sse(text)
    assert last == "[DONE]"
    made: dict[int, dict[str, Any]] = {}
    reasons: dict[int, str] = {}
    for choice in (choice for chunk in chunks for choice in json.loads(chunk)["choices"]):
        index, delta = choice["index"], choice["delta"]
        message = made.setdefault(index, {"content": "", "reasoning_content": "", "tool_calls": []})
        assert index not in reasons
        for name in ("content", "reasoning_content"):
            message[name] += delta.get(name) or ""
        for piece in delta.get("tool_calls", []):
            if piece["index"] == len(message["tool_calls"]):
                message["tool_calls"].append(piece)  # the first piece has all fields
            else:
                assert piece["index"] == len(message["tool_calls"]) - 1
                message["tool_calls"][-1]["function"]["arguments"] += piece["function"]["arguments"]
        if choice["finish_reason"]:
            reasons[index] = choice["finish_reason"]
    return [_choice(made[index], reasons[index]) for index in sorted(made)]


def _choice(message: dict[str, Any], reason: str) -> Answer:
    calls = message.get("tool_calls", [])
    assert all(each["type"] == "function" and each["id"].startswith("call_") for each in calls)
    functions = tuple((each["function"]["name"], each["function"]["arguments"]) for each in calls)
    return Answer(message["content"] or "", functions, message.get("reasoning_content", ""), reason)


def _read_response(text: str, stream: bool) -> Answer:
    response = _check_items(sse_events(text)) if stream else json.loads(text)
    texts = {"message": "", "reasoning": ""}
    calls = []
    for item in response["output"]:
        if item["type"] == "function_call":
            assert item["call_id"].startswith("call_")
            calls.append((item["name"], item["arguments"]))
        else:
            texts[item["type"]] += item["content"][0]["text"]
    reason = "length" if response["status"] == "incomplete" else "tool_calls" if calls else "stop"
    return Answer(texts["message"], tuple(calls), texts["reasoning"], reason)


def _check_items(events: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Returns the response at the end of a stream, whose items have to be those of the events before."""
    response: dict[str, Any] = events[-1][1]["response"]
    built: dict[int, str] = {}
    for name, event in events:
        at = event.get("output_index")
        if name == "response.output_item.added":
            assert at == len(built)
            built[at] = ""
        elif name.endswith(".delta"):
            built[at] += event["delta"]
        elif name == "response.output_item.done":
            assert event["item"] == response["output"][at]
    items = response["output"]
    assert [*built.values()] == [it["arguments"] if "arguments" in it else it["content"][0]["text"] for it in items]
    assert len({item["id"] for item in items}) == len(items)
    return response


def _read_message(text: str, stream: bool) -> Answer:
    if not stream:
        message = json.loads(text)
        blocks = [(block, json.dumps(block.get("input"), ensure_ascii=False)) for block in message["content"]]
    else:
        events = sse_events(text)
        message, blocks = events[-2][1]["delta"], []
        for name, event in events:
            if name == "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append((dict(event["content_block"]), ""))
            elif name == "content_block_delta":
                assert event["index"] == len(blocks) - 1
                kind, piece = event["delta"].values()
                block, arguments = blocks[-1]
                if kind == "input_json_delta":
                    blocks[-1] = block, arguments + piece
                else:
                    block[block["type"]] += piece
    texts = {"text": "", "thinking": ""}
    calls = []
    for block, arguments in blocks:
        if block["type"] == "tool_use":
            calls.append((block["name"], arguments))
        else:
            texts[block["type"]] += block[block["type"]]
    return Answer(texts["text"], tuple(calls), texts["thinking"], _REASONS[message["stop_reason"]])
