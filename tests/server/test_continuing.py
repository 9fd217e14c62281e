"""Tests of answers that continue the assistant's message at the end of the request."""

from typing import Any

import httpx
import pytest

from runtime.tokenizer import Tokenizer
from tests.server.dialects import CHAT, MESSAGES, Answer, ask, call, say, tool
from tests.server.harness import ServerProcess

ASKED = {"role": "user", "content": "What is 3 + 4?"}
BEGUN = "3 + 4 ="
ROME = call(city="Rome")
FLAGS = {"add_generation_prompt": False, "continue_final_message": True}


@pytest.fixture(scope="module")
def server(scripted: ServerProcess) -> ServerProcess:
    return scripted


@pytest.fixture(scope="module")
def tokenizer(tagged: Any) -> Tokenizer:
    return Tokenizer(tagged)


def chat(text: str, begun: Any = "x", **more: Any) -> dict[str, Any]:
    """Returns a chat request whose answer is `text`, as a continuation of the assistant's message `begun`."""
    messages = [{"role": "user", "content": say(text)}, {"role": "assistant", "content": begun}]
    return {"messages": messages, "max_tokens": 200, **FLAGS, **more}


@pytest.mark.parametrize("stream", [False, True])
def test_the_demo_continues_its_own_answer(demo: ServerProcess, stream: bool) -> None:
    messages = [ASKED, {"role": "assistant", "content": BEGUN}]
    with demo.client() as client:
        body = {"messages": messages, "max_tokens": 8}
        for route, flags in ((CHAT, FLAGS), (MESSAGES, {})):
            assert ask(client, route, {**body, **flags}, stream).content.strip() == "7."
        assert client.post("/generate", json={**body, **FLAGS}).json()["text"].strip() == "7."


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


PARTS = [{"type": "text", "text": "3 + "}, {"type": "text", "text": "4 ="}]


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (chat(" 7, and more", BEGUN), Answer(" 7, and more")),
        (chat(" 7, and more", BEGUN, stop=[","]), Answer(" 7")),
        (chat(" 7", BEGUN, add_generation_prompt=None), Answer(" 7")),
        (chat("7", PARTS), Answer("7")),
        # reasoning that the message has begun is continued, and ended reasoning is not
        (chat("more</think>done <think>x", "<think>some "), Answer("done <think>x", (), "more")),
        (chat("<think>x</think>y", "<think>some</think>"), Answer("<think>x</think>y")),
        (chat("<think>x</think>y", "text"), Answer("<think>x</think>y")),
        (chat("<think>x</think>y", ""), Answer("y", (), "x")),
        # tools are called after a text
        (chat(f" here:{ROME}", "Look", tools=[tool(CHAT)]),
         Answer(" here:", (("weather", '{"city": "Rome"}'),), reason="tool_calls")),
        (chat("x", f"{ROME} and", tools=[tool(CHAT)]), Answer("x")),
    ],
)  # fmt: skip
def test_the_answer_is_only_the_continuation(client: httpx.Client, body: dict[str, Any], answer: Answer) -> None:
    assert ask(client, CHAT, body) == answer
    messages = {"messages": body["messages"], "max_tokens": 50}
    assert "tools" in body or ask(client, MESSAGES, messages | {"stop_sequences": body.get("stop", [])}) == answer
