"""Tests of answers that continue the assistant's message at the end of the request."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from runtime.tokenizer import Tokenizer
from tests.server.harness import ServerProcess, sse, sse_events
from tests.server.test_dialect_parts import CALL, CHAT_TOOL, TOOL, say

CHAT = "/v1/chat/completions"
ASKED = {"role": "user", "content": "What is 3 + 4?"}
BEGUN = "3 + 4 ="
FLAGS = {"add_generation_prompt": False, "continue_final_message": True}


@pytest.fixture(scope="module")
def server(scripted: ServerProcess) -> ServerProcess:
    return scripted


@pytest.fixture(scope="module")
def tokenizer(tagged: Any) -> Tokenizer:
    return Tokenizer(tagged)


def chat(text: str, begun: str = "x", **more: Any) -> dict[str, Any]:
    """Returns a chat request whose answer is `text`, as a continuation of the assistant's message `begun`."""
    messages = [{"role": "user", "content": say(text)}, {"role": "assistant", "content": begun}]
    return {"messages": messages, "max_tokens": 100, **FLAGS, **more}


def content(client: httpx.Client, body: dict[str, Any]) -> str:
    answer = client.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    assert "x-unmask-ignored" not in answer.headers
    return answer.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_demo_continues_its_own_answer(demo: ServerProcess, stream: bool) -> None:
    messages = [ASKED, {"role": "assistant", "content": BEGUN}]
    with demo.client() as client:
        taken = client.post(CHAT, json={"messages": messages, "max_tokens": 8, "stream": stream, **FLAGS})
        if stream:
            deltas = [json.loads(data)["choices"][0]["delta"] for data in sse(taken.text)[:-1]]
            text = "".join(delta.get("content") or "" for delta in deltas)
        else:
            text = taken.json()["choices"][0]["message"]["content"]
        assert text.strip() == "7."
        taken = client.post("/v1/messages", json={"messages": messages, "max_tokens": 8, "stream": stream})
        if stream:
            deltas = [event["delta"]["text"] for name, event in sse_events(taken.text) if name == "content_block_delta"]
            text = "".join(deltas)
        else:
            text = taken.json()["content"][0]["text"]
        assert text.strip() == "7."
        generated = client.post("/generate", json={"messages": messages, "max_tokens": 8, **FLAGS}).json()
        assert generated["text"].strip() == "7."


def test_without_the_flags_the_assistants_last_message_is_not_continued(demo: ServerProcess) -> None:
    messages = [ASKED, {"role": "assistant", "content": BEGUN}]
    with demo.client() as client:
        ids = client.post("/tokenize", json={"messages": messages}).json()["tokens"]
        continued = client.post("/tokenize", json={"messages": messages, **FLAGS}).json()["tokens"]
        assert len(ids) > len(continued)
        answer = client.post(CHAT, json={"messages": messages, "max_tokens": 8}).json()
        assert answer["usage"]["prompt_tokens"] == len(ids)
        again = client.post(CHAT, json={"messages": messages, "max_tokens": 8, **FLAGS}).json()
        assert again["usage"]["prompt_tokens"] == len(continued)


@pytest.mark.parametrize("begun", ["3 + 4 =", " spaced ", "", "two\nlines\n", "<|role_end|>", "<think>", "é😀"])
def test_the_prompt_ends_with_the_message(client: httpx.Client, tokenizer: Tokenizer, begun: str) -> None:
    messages = [ASKED, {"role": "assistant", "content": begun}]
    for flags in (FLAGS, {"continue_final_message": True}):
        ids = client.post("/tokenize", json={"messages": messages, **flags}).json()["tokens"]
        text = tokenizer.decode(ids)
        assert text == f"<role>user</role>{ASKED['content']}<|role_end|><role>assistant</role>{begun}"
        special = [id for id in ids if id in tokenizer.special]
        assert len(special) == 5  # those of the template: no text of a message becomes a special token
    counted = client.post("/v1/messages/count_tokens", json={"messages": messages})
    assert counted.json()["input_tokens"] == len(ids)


def test_the_generation_prompt_can_be_left_out(client: httpx.Client, tokenizer: Tokenizer) -> None:
    body = {"messages": [ASKED], "add_generation_prompt": False}
    ids = client.post("/tokenize", json=body).json()["tokens"]
    assert tokenizer.decode(ids) == f"<role>user</role>{ASKED['content']}<|role_end|>"
    full = client.post("/tokenize", json={**body, "add_generation_prompt": True}).json()["tokens"]
    assert full == client.post("/tokenize", json={"messages": [ASKED]}).json()["tokens"] != ids


def test_the_answer_is_only_the_continuation(client: httpx.Client) -> None:
    assert content(client, chat(" 7, and more", BEGUN)) == " 7, and more"
    assert content(client, chat(" 7, and more", BEGUN, stop=[","])) == " 7"
    assert content(client, chat(" 7", BEGUN, add_generation_prompt=None)) == " 7"


def test_a_message_of_several_parts_is_continued(client: httpx.Client) -> None:
    body = chat("7")
    body["messages"][1]["content"] = [{"type": "text", "text": "3 + "}, {"type": "text", "text": "4 ="}]
    assert content(client, body) == "7"
    blocks = {"messages": body["messages"], "max_tokens": 50}
    assert client.post("/v1/messages", json=blocks).json()["content"][0]["text"] == "7"


def test_reasoning_that_the_message_has_begun_is_continued_and_ended_reasoning_is_not(client: httpx.Client) -> None:
    body = chat("more</think>done <think>x", "<think>some ")
    message = client.post(CHAT, json=body).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("more", "done <think>x")
    for begun in ("<think>some</think>", "text"):
        message = client.post(CHAT, json=chat("<think>x</think>y", begun)).json()["choices"][0]["message"]
        assert message["content"] == "<think>x</think>y"
        assert "reasoning_content" not in message
    message = client.post(CHAT, json=chat("<think>x</think>y", "")).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("x", "y")


def test_tools_are_called_after_a_text(client: httpx.Client) -> None:
    answer = client.post(CHAT, json=chat(f" here:{CALL}", "Look", tools=[CHAT_TOOL])).json()["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["content"] == " here:"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"guided_choice": ["a"]}, "guided_choice"),
        ({"tools": [CHAT_TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [CHAT_TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}}, "tool_choice"),
        ({"add_generation_prompt": True}, "continue_final_message"),
        ({"messages": [ASKED]}, "continue_final_message"),
        ({"messages": [ASKED, {"role": "assistant", "content": "a"}, ASKED]}, "continue_final_message"),
        ({"messages": [ASKED, {"role": "assistant", "content": "a", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]}]}, "messages[1]"),
        ({"messages": [ASKED, {"role": "assistant", "reasoning_content": "a"}]}, "messages[1]"),
    ],
)  # fmt: skip
def test_chats_that_cannot_be_continued_are_refused(client: httpx.Client, more: dict[str, Any], param: str) -> None:
    refused = client.post(CHAT, json={**chat("x"), **more})
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"output_config": {"format": {"type": "json_object"}}}, "output_config.format: "),
        ({"tools": [TOOL], "tool_choice": {"type": "any"}}, "tool_choice: "),
        ({"messages": [ASKED, {"role": "assistant", "content": [
            {"type": "text", "text": "a"}, {"type": "tool_use", "id": "c", "name": "weather", "input": {}}]}]},
         "messages[1]: has tool calls"),
        ({"messages": [ASKED, {"role": "assistant", "content": [{"type": "thinking", "thinking": "a"}]}]},
         "messages[1]: has only reasoning"),
    ],
)  # fmt: skip
def test_messages_that_cannot_be_continued_are_refused(client: httpx.Client, more: dict[str, Any], says: str) -> None:
    body = {"messages": [ASKED, {"role": "assistant", "content": "x"}], "max_tokens": 9, **more}
    refused = client.post("/v1/messages", json=body)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["message"].startswith(says)


def test_a_call_that_the_message_has_begun_is_refused(client: httpx.Client) -> None:
    refused = client.post(CHAT, json=chat("x", '<tool_call>\n{"name": ', tools=[CHAT_TOOL]))
    assert refused.json()["error"]["param"] == "tools"
    assert client.post(CHAT, json=chat("x", f"{CALL} and", tools=[CHAT_TOOL])).status_code == 200


@pytest.mark.parametrize("route", ["/generate", "/tokenize"])
@pytest.mark.parametrize("name", FLAGS)
def test_flags_of_continuation_are_refused_with_a_prompt(client: httpx.Client, route: str, name: str) -> None:
    refused = client.post(route, json={"prompt": "a", name: True})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == name


def test_a_grammar_does_not_continue_a_message_of_generate(client: httpx.Client) -> None:
    body = {**chat("x"), "structured_outputs": {"regex": "a"}}
    assert client.post("/generate", json=body).json()["error"]["param"] == "structured_outputs"
