"""Tests that stop strings are searched in the answer and not in its reasoning, complete and streamed, on each route."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.server.harness import ServerProcess, sse, sse_events
from tests.server.test_dialect_parts import CALL, CHAT_TOOL, say

TEXT = "<think>\none STOP two\n</think>\n\nthree STOP four"


@pytest.fixture(scope="module")
def server(scripted: ServerProcess) -> ServerProcess:
    return scripted


def body(route: str, text: str, stop: list[str], **more: Any) -> dict[str, Any]:
    if route == "responses":
        return {"input": say(text), "stop": stop, **more}
    name = "stop_sequences" if route == "messages" else "stop"
    return {"messages": [{"role": "user", "content": say(text)}], "max_tokens": 300, name: stop, **more}


def read(route: str, text: str, stream: bool) -> tuple[str, str]:
    """Returns the reasoning and the answer of a response."""
    if route == "chat/completions" and stream:
        deltas = [json.loads(data)["choices"][0]["delta"] for data in sse(text)[:-1]]
        return tuple("".join(d.get(name) or "" for d in deltas) for name in ("reasoning_content", "content"))
    if route == "chat/completions":
        message = json.loads(text)["choices"][0]["message"]
        return message.get("reasoning_content", ""), message["content"] or ""
    if route == "responses":
        answer = sse_events(text)[-1][1]["response"] if stream else json.loads(text)
        items = [(item["type"] == "reasoning", item["content"][0]["text"]) for item in answer["output"]]
    elif stream:
        deltas = [event["delta"] for name, event in sse_events(text) if name == "content_block_delta"]
        items = [("thinking" in delta, delta.get("thinking") or delta.get("text", "")) for delta in deltas]
    else:
        items = [(b["type"] == "thinking", b.get("thinking") or b["text"]) for b in json.loads(text)["content"]]
    return tuple("".join(piece for thinks, piece in items if thinks is kind) for kind in (True, False))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ["chat/completions", "responses", "messages"])
@pytest.mark.parametrize(
    ("stop", "answer"),
    [
        (["STOP"], "three "),
        (["two"], "three STOP four"),
        (["</think>", "<think>"], "three STOP four"),
        (["\n\n", "\n"], "three STOP four"),
        (["one", "four"], "three STOP "),
    ],
)
def test_reasoning_is_not_searched(
    client: httpx.Client, route: str, stop: list[str], answer: str, stream: bool
) -> None:
    for seed in range(3):
        taken = client.post(f"/v1/{route}", json=body(route, TEXT, stop, stream=stream, seed=seed))
        assert taken.status_code == 200, taken.text
        assert read(route, taken.text, stream) == ("one STOP two", answer)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ["chat/completions", "responses", "messages"])
def test_an_answer_without_reasoning_is_searched(client: httpx.Client, route: str, stream: bool) -> None:
    for text, stop, answer in (("a <th b", ["<th"], "a "), ("<th b", ["th"], "<"), (" \n a", ["\n"], " ")):
        for seed in range(3):
            taken = client.post(f"/v1/{route}", json=body(route, text, stop, stream=stream, seed=seed))
            assert read(route, taken.text, stream) == ("", answer)


def test_the_stop_sequence_of_a_message_is_that_of_the_answer(client: httpx.Client) -> None:
    taken = client.post("/v1/messages", json=body("messages", TEXT, ["two", "STOP"])).json()
    assert (taken["stop_reason"], taken["stop_sequence"]) == ("stop_sequence", "STOP")


def test_unclosed_reasoning_is_not_searched(client: httpx.Client) -> None:
    taken = client.post("/v1/chat/completions", json=body("chat/completions", "<think>one STOP", ["STOP"]))
    assert read("chat/completions", taken.text, False) == ("one STOP", "")


def test_calls_are_searched(client: httpx.Client) -> None:
    text = f"<think>Zürich</think>{CALL}"
    taken = client.post("/v1/chat/completions", json=body("chat/completions", text, ["Zürich"], tools=[CHAT_TOOL]))
    choice = taken.json()["choices"][0]
    assert choice["message"]["reasoning_content"] == "Zürich"
    assert "tool_calls" not in choice["message"]
