"""Answers with text, reasoning and tool calls on each chat API, complete and streamed, with scripted answers."""

import json
import random
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from runtime.config import ServerConfig
from runtime.errors import ConfigError, RequestError
from runtime.parsers.formats import check_parsers
from runtime.server.serving.tools import ChatContext, Choice, ToolItem, offered_tools, select_tools
from runtime.tokenizer import Tokenizer
from tests.request.test_sampling_params import INFO
from tests.server.dialects import (
    CHAT,
    CITY,
    MESSAGES,
    NO_PARAMETERS,
    RESPONSES,
    ROUTES,
    Answer,
    ask,
    call,
    read_choices,
    request,
    say,
    tool,
)
from tests.server.harness import SCRIPTED, ServerProcess, serving, sse_events
from tests.wait import TIMEOUT

ROME, CLOCK = call(city="Rome"), call("clock")
CALLED = ("weather", '{"city": "Rome"}')
BOTH = ("weather", "clock")
CUT = len(ROME[: ROME.index("Rome") + 2]) - len("<tool_call>") + 1  # tokens before "me"; the tag is one token
THOUGHT = "<think>\none STOP two\n</think>\n\nthree STOP four"
# The text of the model, the names of the tools, further fields, and the answer.
CASES: dict[str, tuple[str, tuple[str, ...], dict[str, Any], Answer]] = {
    "calls": (f"Let me look.\n{call(city='Zürich')}\n{CLOCK}", BOTH, {},
              Answer("Let me look.", (("weather", '{"city": "Zürich"}'), ("clock", "{}")), reason="tool_calls")),
    "no tools": (f"hm {ROME} .", (), {}, Answer(f"hm {ROME} .")),
    "one call": (f"{CLOCK}\n{ROME}" + "x" * 500, BOTH, {"parallel_tool_calls": False},
                 Answer(calls=(("clock", "{}"),), reason="tool_calls")),
    "limit in a call": (ROME, BOTH, {"max_tokens": CUT}, Answer(reason="length")),
    "limit in a name": (ROME, BOTH, {"max_tokens": 9}, Answer(reason="length")),
    "limit after a tag": (ROME, BOTH, {"max_tokens": 1}, Answer(reason="length")),
    "stop in a call": (f"a {ROME}", BOTH, {"stop": ["Rome"]}, Answer(f"a {ROME[:ROME.index('Rome')]}")),
    "reasoning": (f"<think>\nA city.\n</think>\n\nSo:\n{ROME}\n{CLOCK}", BOTH, {},
                  Answer("So:", (CALLED, ("clock", "{}")), "A city.", "tool_calls")),
    "stop in both": (THOUGHT, (), {"stop": ["STOP"]}, Answer("three ", (), "one STOP two")),
    "stop in reasoning": (THOUGHT, (), {"stop": ["two"]}, Answer("three STOP four", (), "one STOP two")),
    "tags as stops": (THOUGHT, (), {"stop": ["</think>", "<think>"]}, Answer("three STOP four", (), "one STOP two")),
    "newlines as stops": (THOUGHT, (), {"stop": ["\n\n", "\n"]}, Answer("three STOP four", (), "one STOP two")),
    "second stop": (THOUGHT, (), {"stop": ["one", "four"]}, Answer("three STOP ", (), "one STOP two")),
    "open reasoning": ("<think>one STOP", (), {"stop": ["STOP"]}, Answer(reasoning="one STOP")),
    "stop in a call only": (f"<think>Rome</think>{ROME}", BOTH, {"stop": ["Rome"]},
                            Answer(ROME[:ROME.index("Rome")], (), "Rome")),
    "half a tag": ("a <th b", (), {"stop": ["<th"]}, Answer("a ")),
    "stop in half a tag": ("<th b", (), {"stop": ["th"]}, Answer("<")),
    "leading space": (" \n a", (), {"stop": ["\n"]}, Answer(" ")),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(scripted: ServerProcess) -> ServerProcess:
    return scripted


def tools(route: str, *names: str) -> dict[str, Any]:
    found = [tool(route, name, NO_PARAMETERS if name == "clock" else CITY) for name in names]
    return {"tools": found} if found else {}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("case", CASES)
def test_an_answer_has_its_parts(client: httpx.Client, route: str, case: str) -> None:
    text, names, fields, expected = CASES[case]
    body = request(route, say(text), **tools(route, *names), **fields)
    assert ask(client, route, body) == expected
    for seed in range(3):
        assert ask(client, route, {**body, "seed": seed}, stream=True) == expected


def test_choices_and_steps_have_parts_too(client: httpx.Client) -> None:
    text, names, _, expected = CASES["reasoning"]
    body = request(CHAT, say(text), **tools(CHAT, *names))
    streamed = client.post(CHAT, json={**body, "n": 3, "seed": 1, "stream": True})
    assert read_choices(streamed.text, True) == [expected] * 3
    assert ask(client, CHAT, {**body, "stream_mode": "denoise"}, stream=True) == expected


def test_parts_that_are_missing_are_null_or_left_out(client: httpx.Client) -> None:
    message = client.post(CHAT, json=request(CHAT, say(CLOCK), **tools(CHAT, "clock"))).json()["choices"][0]["message"]
    assert message["content"] is None
    answer = client.post(CHAT, json=request(CHAT, say("yes"))).json()
    assert "reasoning_content" not in answer["choices"][0]["message"]
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_reasoning_is_counted_and_may_begin_in_the_prompt(client: httpx.Client) -> None:
    body = request(CHAT, say(CASES["reasoning"][0]), **tools(CHAT, *BOTH))
    usage = client.post(CHAT, json=body).json()["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": len("\nA city.\n\n\n") + 2}
    opened = request(CHAT, say("hm\n</think>\n\nyes"), chat_template_kwargs={"enable_thinking": True})
    for stream in (False, True):
        assert ask(client, CHAT, opened, stream) == Answer("yes", (), "hm")


@pytest.mark.parametrize(
    ("route", "fields", "thinks"),
    [
        *((CHAT, {"reasoning_effort": effort}, effort != "none") for effort in ("high", "minimal", "none")),
        *((RESPONSES, {"reasoning": {"effort": effort}}, effort != "none") for effort in ("low", "none")),
        (CHAT, {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}, False),
        (CHAT, {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, True),
        (RESPONSES, {"reasoning": {"effort": None}}, False),
    ],
)
def test_the_effort_switches_reasoning(client: httpx.Client, route: str, fields: dict[str, Any], thinks: bool) -> None:
    """The template opens the reasoning, so that the text before the end marker is reasoning."""
    for stream in (False, True):
        answer = ask(client, route, request(route, say("hm\n</think>\n\nyes"), **fields), stream)
        assert answer == (Answer("yes", (), "hm") if thinks else Answer("hm\n</think>\n\nyes"))


def bare(value: Any) -> Any:
    """Returns the value without ids, which differ between answers."""
    if isinstance(value, dict):
        return {name: bare(item) for name, item in value.items() if name not in ("id", "call_id", "item_id")}
    return [bare(item) for item in value] if isinstance(value, list) else value


def test_items_of_a_response(client: httpx.Client) -> None:
    body = request(RESPONSES, say(CASES["reasoning"][0]), **tools(RESPONSES, *BOTH))
    complete = client.post(RESPONSES, json=body).json()
    content = [{"type": "output_text", "text": "So:", "annotations": [], "logprobs": []}]
    done = {"type": "function_call", "status": "completed"}
    assert bare(complete["output"]) == [
        {"type": "reasoning", "status": "completed", "summary": [],
         "content": [{"type": "reasoning_text", "text": "A city."}]},
        {"type": "message", "role": "assistant", "status": "completed", "content": content},
        {**done, "name": "weather", "arguments": '{"city": "Rome"}'},
        {**done, "name": "clock", "arguments": "{}"},
    ]  # fmt: skip
    assert complete["tools"] == body["tools"]
    assert complete["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    events = sse_events(client.post(RESPONSES, json={**body, "stream": True}).text)
    names = [name for name, event in events if event.get("output_index") == 2 and not name.endswith(".delta")]
    item = "response.output_item"
    assert names == [f"{item}.added", "response.function_call_arguments.done", f"{item}.done"]


def test_blocks_of_a_message(client: httpx.Client) -> None:
    body = request(MESSAGES, say(CASES["reasoning"][0]), **tools(MESSAGES, *BOTH))
    assert bare(client.post(MESSAGES, json=body).json()["content"]) == [
        {"type": "thinking", "thinking": "A city.", "signature": ""},
        {"type": "text", "text": "So:"},
        {"type": "tool_use", "name": "weather", "input": {"city": "Rome"}},
        {"type": "tool_use", "name": "clock", "input": {}},
    ]
    stopped = request(MESSAGES, say(THOUGHT), stop=["two", "STOP"])
    taken = client.post(MESSAGES, json=stopped).json()
    assert (taken["stop_reason"], taken["stop_sequence"]) == ("stop_sequence", "STOP")
    cut = request(MESSAGES, say(ROME), max_tokens=1, **tools(MESSAGES, "weather"))
    assert client.post(MESSAGES, json=cut).json()["content"] == []


@pytest.mark.parametrize("value", ['"\\ud800"', "[" * 62 + "]" * 62])
def test_arguments_with_surrogates_or_deep_nesting_are_answered(client: httpx.Client, value: str) -> None:
    arguments = f'{{"city": {value}}}'
    text = f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>'
    body = request(MESSAGES, say(text), **tools(MESSAGES, "weather"))
    for stream in (False, True):
        ((_, found),) = ask(client, MESSAGES, body, stream).calls
        assert json.loads(found) == json.loads(arguments)


def test_the_openai_client_sends_results_of_calls(ai: openai.OpenAI) -> None:
    asked: Any = request(CHAT, say(ROME), **tools(CHAT, "weather"))
    with ai.chat.completions.stream(**asked) as stream:
        message = stream.get_final_completion().choices[0].message
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Rome"}
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "12 degrees"}
    again = {"role": "user", "content": say("It is 12 degrees.")}
    asked["messages"] = [*asked["messages"], message, result, again]
    assert ai.chat.completions.create(**asked).choices[0].message.content == "It is 12 degrees."
    asked = request(RESPONSES, say(ROME), **tools(RESPONSES, "weather"))
    with ai.responses.stream(**asked) as stream:
        (item,) = stream.get_final_response().output
    assert item.type == "function_call"
    assert json.loads(item.arguments) == {"city": "Rome"}
    output = {"type": "function_call_output", "call_id": item.call_id, "output": "12 degrees"}
    asked["input"] = [*asked["input"], item, output, again]
    assert ai.responses.create(**asked).output_text == "It is 12 degrees."


def test_the_anthropic_client_sends_a_result_of_a_call(scripted: ServerProcess) -> None:
    asked: Any = request(MESSAGES, say(ROME), **tools(MESSAGES, "weather"))
    with anthropic.Anthropic(base_url=scripted.url, api_key="none", max_retries=0, timeout=TIMEOUT) as claude:
        with claude.messages.stream(**asked) as stream:
            first = stream.get_final_message()
        (block,) = first.content
        assert block.input == {"city": "Rome"}
        result = [{"type": "tool_result", "tool_use_id": block.id, "content": "12 degrees"},
                  {"type": "text", "text": say("It is 12 degrees.")}]  # fmt: skip
        asked["messages"] += [{"role": "assistant", "content": first.content}, {"role": "user", "content": result}]
        assert claude.messages.create(**asked).content[0].text == "It is 12 degrees."
        counts = {**asked}
        del counts["max_tokens"]
        more = claude.messages.count_tokens(**counts).input_tokens
        del counts["tools"]
        assert more > claude.messages.count_tokens(**counts).input_tokens


def test_the_template_gets_tools_and_arguments_as_objects(client: httpx.Client, tagged: Path) -> None:
    before = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"é"}'}}
    history = [
        {"role": "user", "content": say("ok")},
        {"role": "assistant", "content": None, "tool_calls": [before]},
        {"role": "tool", "tool_call_id": "c1", "content": "12"},
    ]
    offered = [tool(CHAT, strict=False, description=None)]
    ids = client.post("/tokenize", json={"messages": history, "tools": offered}).json()["tokens"]
    text = Tokenizer(tagged).decode(ids)
    function = json.dumps({"name": "weather", "parameters": CITY})
    assert f'{{"type": "function", "function": {function}}}\n' in text
    assert '<tool_call>{"name": "weather", "arguments": {"city": "é"}}</tool_call>' in text
    assert "<role>tool</role>12" in text
    assert ask(client, CHAT, request(CHAT, history, tools=offered)) == Answer("ok")


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


@pytest.mark.parametrize(
    "seeds",
    [range(50), pytest.param(range(1000, 2000), marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
    ids=["few", "many"],
)
def test_random_streamed_messages_are_never_empty_and_never_cut(client: httpx.Client, seeds: range) -> None:
    called = 0
    for seed in seeds:
        rng = random.Random(seed)
        text = tool_message(rng)
        body = request(CHAT, say(text), **tools(CHAT, *BOTH), seed=seed, parallel_tool_calls=rng.random() < 0.8)
        found = ask(client, CHAT, body, stream=True)
        assert found == ask(client, CHAT, body), text
        assert (found.reason == "tool_calls") == bool(found.calls), text
        for name, arguments in found.calls:
            assert name in BOTH
            assert isinstance(json.loads(arguments), dict), text
        assert found.content or found.calls or not text.removeprefix("<think>hm</think>").strip(), text
        called += bool(found.calls)
    assert called > len(seeds) * 0.4


def test_parsers_and_strict_fields_are_flags(client: httpx.Client, tagged: Path) -> None:
    strict = request(CHAT, say(ROME), tools=[tool(CHAT, strict=True)])
    taken = client.post(CHAT, json=strict)
    assert taken.headers["x-unmask-ignored"] == "tools.function.strict"
    assert read_choices(taken.text, False)[0].calls == (CALLED,)
    flags = ("--tool-call-parser", "qwen3_coder", "--reasoning-parser", "off", "--strict-fields")
    arguments = ("--model", str(tagged), "--served-model-name", "tiny", *flags)
    with serving(*arguments, module=SCRIPTED) as other, other.client() as picky:
        text = "<think>a</think><tool_call>\n<function=clock>\n</function>\n</tool_call>"
        body = request(CHAT, say(text), **tools(CHAT, "clock"))
        assert ask(picky, CHAT, body) == Answer("<think>a</think>", (("clock", "{}"),), reason="tool_calls")
        for wrong, param in (({**body, "tool_choice": "required"}, "tool_choice"), (strict, "tools.function.strict")):
            assert picky.post(CHAT, json=wrong).json()["error"]["param"] == param


def test_parsers_are_known_or_off(tagged: Path) -> None:
    check_parsers("off", "off")
    for flag, values in {"--tool-call-parser": ("nope", None), "--reasoning-parser": (None, "nope")}.items():
        with pytest.raises(ConfigError, match=f"{flag}: .*'nope'.* off"):
            check_parsers(*values)
    offered = select_tools(offered_tools([ToolItem(**tool(CHAT))]), Choice(), single_call=False)
    with pytest.raises(RequestError, match=r"tools: .*--tool-call-parser off"):
        ChatContext(ServerConfig(tool_call_parser="off"), INFO, Tokenizer(tagged), offered)
