"""Tests of tools and reasoning over HTTP, with scripted answers in random pieces."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from runtime.server.openai.protocol import Message, template_messages
from runtime.tokenizer import Tokenizer
from tests.server.harness import SCRIPTED, ServerProcess, serving, sse

CHAT = "/v1/chat/completions"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": CITY}}
CLOCK = {"type": "function", "function": {"name": "clock"}}


@pytest.fixture(scope="module")
def server(scripted: ServerProcess) -> ServerProcess:
    return scripted


def say(text: str, **more: Any) -> dict[str, Any]:
    """Returns a request whose answer is `text`."""
    return {"model": "tiny", "messages": [{"role": "user", "content": "SAY:" + json.dumps(text)}], **more}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def complete(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return seen(choice["message"], choice["finish_reason"])


def seen(message: dict[str, Any], reason: str) -> dict[str, Any]:
    calls = message.get("tool_calls", [])
    assert all(one["type"] == "function" and one["id"].startswith("call_") for one in calls)
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "calls": [(one["function"]["name"], one["function"]["arguments"]) for one in calls],
        "reason": reason,
    }


def streamed(client: httpx.Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns each choice of a stream as a client assembles it."""
    answer = client.post(CHAT, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    data = sse(answer.text)
    assert data[-1] == "[DONE]"
    made: dict[int, dict[str, Any]] = {}
    reasons: dict[int, str] = {}
    for chunk in map(json.loads, data[:-1]):
        for choice in chunk["choices"]:
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
    return [seen(made[index], reasons[index]) for index in sorted(made)]


def test_a_call_is_answered_complete_and_streamed(client: httpx.Client) -> None:
    body = say(f"Let me look.\n{call('weather', city='Zürich')}\n{call('clock')}", tools=[WEATHER, CLOCK])
    expected = {
        "content": "Let me look.",
        "reasoning": "",
        "calls": [("weather", '{"city": "Zürich"}'), ("clock", "{}")],
        "reason": "tool_calls",
    }
    assert complete(client, body) == expected
    for seed in range(5):
        assert streamed(client, {**body, "seed": seed}) == [expected]
    assert streamed(client, {**body, "n": 3, "seed": 1}) == [expected] * 3
    only = client.post(CHAT, json=say(call("clock"), tools=[CLOCK])).json()["choices"][0]["message"]
    assert only["content"] is None


def test_without_tools_a_call_is_text(client: httpx.Client) -> None:
    text = f"hm {call('weather', city='Rome')} ."
    for more in ({}, {"tools": []}, {"tools": [WEATHER], "tool_choice": "none"}):
        assert complete(client, say(text, **more)) == {"content": text, "reasoning": "", "calls": [], "reason": "stop"}


def test_without_parallel_calls_the_first_call_ends_the_answer(client: httpx.Client) -> None:
    body = say(f"{call('clock')}\n{call('weather', city='Rome')}" + "x" * 500, tools=[WEATHER, CLOCK])
    expected = {"content": "", "reasoning": "", "calls": [("clock", "{}")], "reason": "tool_calls"}
    assert complete(client, {**body, "parallel_tool_calls": False}) == expected
    assert streamed(client, {**body, "parallel_tool_calls": False}) == [expected]
    assert len(complete(client, body)["calls"]) == 2


def test_a_limit_in_the_middle_of_a_call_drops_the_call(client: httpx.Client) -> None:
    text = call("weather", city="Rome")
    before = len(text[: text.index("Rome") + 2]) - len("<tool_call>") + 1  # the tag is one token
    for max_tokens in (before, 9, 1):
        cut = say(text, tools=[WEATHER], max_tokens=max_tokens)
        expected = {"content": "", "reasoning": "", "calls": [], "reason": "length"}
        assert complete(client, cut) == expected
        assert streamed(client, cut) == [expected]


def test_a_stop_string_in_a_call_leaves_text(client: httpx.Client) -> None:
    body = say(f"a {call('weather', city='Rome')}", tools=[WEATHER], stop="Rome")
    expected = {"content": 'a <tool_call>\n{"name": "weather", "arguments": {"city": "', "reasoning": "", "calls": [],
                "reason": "stop"}  # fmt: skip
    assert complete(client, body) == expected
    assert streamed(client, body) == [expected]


def test_reasoning_is_a_separate_part(client: httpx.Client) -> None:
    body = say(f"<think>\nA city.\n</think>\n\nSo:\n{call('weather', city='Rome')}", tools=[WEATHER])
    expected = {
        "content": "So:",
        "reasoning": "A city.",
        "calls": [("weather", '{"city": "Rome"}')],
        "reason": "tool_calls",
    }
    assert complete(client, body) == expected
    assert streamed(client, body) == [expected]
    usage = client.post(CHAT, json=body).json()["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": len("\nA city.\n\n\n") + 2}
    opened = say("hm\n</think>\n\nyes", chat_template_kwargs={"enable_thinking": True})
    assert complete(client, opened) == {"content": "yes", "reasoning": "hm", "calls": [], "reason": "stop"}
    assert streamed(client, opened)[0]["reasoning"] == "hm"
    reference = client.post(CHAT, json=say("yes")).json()
    assert "reasoning_content" not in reference["choices"][0]["message"]
    assert reference["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_denoise_streams_have_parts_too(client: httpx.Client) -> None:
    body = say(f"Look:\n{call('weather', city='Rome')}", tools=[WEATHER], stream_mode="denoise")
    assert streamed(client, body) == [complete(client, say(f"Look:\n{call('weather', city='Rome')}", tools=[WEATHER]))]


def test_the_openai_client_sends_a_result_of_a_call(ai: openai.OpenAI) -> None:
    asked: Any = say(call("weather", city="Rome"), tools=[WEATHER])
    first = ai.chat.completions.create(**asked)
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls is not None
    assert message.tool_calls[0].type == "function"
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Rome"}
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "12 degrees"}
    asked["messages"] = [*asked["messages"], message, result, *say("It is 12 degrees.")["messages"]]
    last = ai.chat.completions.create(**asked)
    assert last.choices[0].message.content == "It is 12 degrees."
    with ai.chat.completions.stream(**say(call("weather", city="Rome"), tools=[WEATHER])) as stream:
        final = stream.get_final_completion().choices[0].message
    assert final.tool_calls is not None
    assert final.tool_calls[0].function.arguments == '{"city": "Rome"}'


def test_the_template_gets_tools_and_arguments_as_objects(client: httpx.Client, tagged: Path) -> None:
    before = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"é"}'}}
    history = [
        {"role": "user", "content": "SAY:" + json.dumps("ok")},
        {"role": "assistant", "content": None, "tool_calls": [before]},
        {"role": "tool", "tool_call_id": "c1", "content": "12"},
    ]
    tools = [
        {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": False, "description": None}}
    ]
    answer = client.post("/tokenize", json={"messages": history, "tools": tools})
    text = Tokenizer(tagged).decode(answer.json()["tokens"])
    assert '{"type": "function", "function": {"name": "weather", "parameters": ' + json.dumps(CITY) + "}}\n" in text
    assert '<tool_call>{"name": "weather", "arguments": {"city": "é"}}</tool_call>' in text
    assert "<role>tool</role>12" in text
    answer = client.post(CHAT, json={"model": "tiny", "messages": history, "tools": tools})
    assert answer.json()["choices"][0]["message"]["content"] == "ok"
    assert len(answer.json()["choices"]) == 1


@pytest.mark.parametrize(
    ("more", "param", "message"),
    [
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "Field required"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "is missing; describe the function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name",
         "'a b' is not a name of 1 to 128 letters, digits, and any of _ - . : /"),
        ({"tools": [CLOCK, WEATHER, CLOCK]}, "tools[2].function.name",
         "'clock' is also that of tools[0]; give another"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
         "tools[0].function.parameters", "the schema is of 'string'; arguments are always an object"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
         "tools[0].function.parameters", "Input should be an object"),
        ({"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "weather"}}}, "tool_choice",
         "'weather' is not among the tools: 'clock'"),
        ({"tool_choice": "required"}, "tool_choice",
         "requires a call, but there are no tools; send tools, or leave it out"),
        ({"tools": [CLOCK], "tool_choice": "always"}, "tool_choice",
         "'always' is not supported; use none, auto, required or "
         '{"type": "function", "function": {"name": ...}}'),
        ({"tools": [CLOCK], "tool_choice": "required"}, "tool_choice",
         "is not supported by this server (scripts know no grammars); leave it out"),
        ({"functions": [{"name": "f"}]}, "functions",
         "the deprecated form of tools is not supported; send tools, and tool_choice instead of function_call"),
        ({"function_call": {"name": "f"}}, "function_call",
         "the deprecated form of tool_choice is not supported; send tools and tool_choice"),
        ({"tools": [CLOCK], "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools",
         "is also set by tools; leave one of them out"),
        ({"messages": [{"role": "tool", "tool_call_id": "x", "content": "1"}]}, "messages[0]",
         "is a tool result without an assistant message that calls a tool before it"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}]},
                       {"role": "tool", "tool_call_id": "x", "content": "1"}]}, "messages[1].tool_call_id",
         "'x' is not the id of an earlier call"),
    ],
)  # fmt: skip
def test_errors_name_the_field_and_the_fault(
    client: httpx.Client, more: dict[str, Any], param: str, message: str
) -> None:
    refused = client.post(CHAT, json={**say("x"), **more})
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == param
    assert refused.json()["error"]["message"] == f"{param}: {message}"


REASONING_PARTS: list[list[dict[str, Any]]] = [
    [{"type": "thinking", "thinking": "hm", "signature": "x"}],
    [{"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"type": "text", "text": "m"}]}],
    [{"type": "reasoning", "reasoning": "hm"}],
    [{"type": "reasoning", "text": "h"}, {"type": "redacted_thinking", "data": "x"}, {"type": "thinking", "text": "m"}],
]


@pytest.mark.parametrize("parts", REASONING_PARTS, ids=json.dumps)
def test_reasoning_parts_of_an_assistant_are_its_reasoning(client: httpx.Client, parts: list[Any]) -> None:
    user = {"role": "user", "content": "x"}
    message = {"role": "assistant", "content": [*parts, {"type": "text", "text": "ho"}]}
    (made,) = template_messages([Message.model_validate(message)])
    assert made == {"role": "assistant", "content": "ho", "reasoning_content": "hm"}
    (made,) = template_messages([Message.model_validate({**message, "reasoning": "no"})])
    assert made["reasoning_content"] == "no"
    taken = client.post(CHAT, json={**say("fine"), "messages": [user, message, *say("fine")["messages"]]})
    assert taken.json()["choices"][0]["message"]["content"] == "fine"
    assert "x-unmask-ignored" not in taken.headers


def test_unknown_fields_of_reasoning_parts_are_named(client: httpx.Client) -> None:
    part = {"type": "thinking", "thinking": "hm", "signature": "x", "self": 1, "mood": 1}
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": [part]}]
    taken = client.post(CHAT, json={**say("fine"), "messages": [*history, *say("fine")["messages"]]})
    assert taken.status_code == 200, taken.text
    assert set(taken.headers["x-unmask-ignored"].split(", ")) == {"messages.content.self", "messages.content.mood"}


@pytest.mark.parametrize(
    "part",
    [{"type": "thinking", "thinking": 5}, {"type": "thinking", "thinking": ["hm"]}, {"type": ["thinking"]},
     {"type": "thinking", "thinking": [{"type": "text", "text": {"a": 1}}]}, {"type": "reasoned"}],
)  # fmt: skip
def test_other_parts_of_an_assistant_are_refused(client: httpx.Client, part: dict[str, Any]) -> None:
    body = say("x")
    messages = [*body["messages"], {"role": "assistant", "content": [part]}, *body["messages"]]
    refused = client.post(CHAT, json={**body, "messages": messages})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"].startswith("messages[1].content[0]")
    user = {"role": "user", "content": [{"type": "thinking", "thinking": "hm"}]}
    refused = client.post(CHAT, json={**body, "messages": [user]})
    assert refused.json()["error"]["message"] == "messages[0].content[0]: thinking parts are not supported, only text"


def test_strict_tools_without_grammars_are_reported_or_refused(client: httpx.Client, tagged: Path) -> None:
    strict = {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}
    body = say(call("weather", city="Rome"), tools=[strict])
    taken = client.post(CHAT, json=body)
    assert taken.headers["x-unmask-ignored"] == "tools.function.strict"
    assert taken.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "weather"
    form = {"response_format": {"type": "json_object"}}
    assert client.post(CHAT, json={**body, **form}).json()["error"]["param"] == "response_format"
    flags = ("--served-model-name", "tiny", "--strict-fields", "--tool-call-parser", "qwen3_coder")
    with serving("--model", str(tagged), *flags, module=SCRIPTED) as server, server.client() as picky:
        refused = picky.post(CHAT, json=body)
        assert refused.json()["error"]["param"] == "tools.function.strict"


def tool_message(rng: random.Random) -> str:
    """Returns an answer with valid and malformed calls."""
    value: Any = rng.choice(["Rome", 'q"uote', "</tool_call>", "{", "é😀", "\n", "a, b"])
    good = call(rng.choice(["weather", "clock"]), **{rng.choice(["city", "x"]): value})
    bad = rng.choice(
        [good[: rng.randrange(len(good))], good.replace("{", "", 1), good.replace('"name"', '"nam"'), "<tool_call>"]
    )
    return rng.choice(["", "Look.\n", "<think>hm</think>"]) + "".join(
        rng.choice([good, good, good, bad, "\n", " words "]) for _ in range(rng.randint(1, 4))
    )


def fuzz(client: httpx.Client, seeds: range) -> int:
    """Streams random answers with tools, and returns how many had calls.

    No message may be empty, no arguments may be incomplete JSON, and each message must equal the complete answer.
    """
    called = 0
    for seed in seeds:
        rng = random.Random(seed)
        text = tool_message(rng)
        body = say(text, tools=[WEATHER, CLOCK], seed=seed, parallel_tool_calls=rng.random() < 0.8)
        (found,) = streamed(client, body)
        assert found == complete(client, body), text
        assert (found["reason"] == "tool_calls") == bool(found["calls"]), text
        for name, arguments in found["calls"]:
            assert name in ("weather", "clock")
            assert isinstance(json.loads(arguments), dict), text
        assert found["content"] or found["calls"] or not text.removeprefix("<think>hm</think>").strip(), text
        called += bool(found["calls"])
    return called


def test_streamed_messages_are_never_empty_and_never_cut(client: httpx.Client) -> None:
    assert fuzz(client, range(50)) > 20


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_thousand_streamed_messages_are_never_empty_and_never_cut(client: httpx.Client) -> None:
    assert fuzz(client, range(1000, 2000)) > 500


def test_an_unknown_parser_is_refused(tagged: Path) -> None:
    for flag, known in (("tool-call-parser", "gemma4, hermes, qwen3_coder"), ("reasoning-parser", "gemma4, think")):
        with serving("--model", str(tagged), f"--{flag}", "nope", module=SCRIPTED, ready=False) as server:
            assert server.wait() == 1
            assert f"error: --{flag}: unknown parser 'nope'; available: {known}, off" in server.log


def test_parsers_are_chosen_by_flag(tagged: Path) -> None:
    flags = ("--tool-call-parser", "qwen3_coder", "--reasoning-parser", "off")
    arguments = ("--model", str(tagged), "--served-model-name", "tiny")
    with serving(*arguments, *flags, module=SCRIPTED) as server, server.client() as client:
        text = "<think>a</think><tool_call>\n<function=clock>\n</function>\n</tool_call>"
        found = complete(client, say(text, tools=[CLOCK]))
        assert (found["content"], found["reasoning"]) == ("<think>a</think>", "")
        assert (found["calls"], found["reason"]) == ([("clock", "{}")], "tool_calls")
        refused = client.post(CHAT, json=say(text, tools=[CLOCK], tool_choice="required"))
        assert "calls in the format qwen3_coder cannot be constrained to a schema" in refused.json()["error"]["message"]
    with serving(*arguments, "--tool-call-parser", "off", module=SCRIPTED) as server, server.client() as client:
        refused = client.post(CHAT, json=say("a", tools=[CLOCK]))
        assert refused.json()["error"]["message"] == "tools: are disabled by --tool-call-parser off; leave them out"
