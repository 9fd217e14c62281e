"""Tests that fields without effect are accepted, and that ignored fields are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from runtime.tokenizer import Tokenizer
from tests.server.harness import FAKE, ServerProcess, serving, sse

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hello"}
BODY: dict[str, Any] = {"model": "tiny", "messages": [USER], "max_tokens": 8}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def answer(client: httpx.Client, **more: Any) -> httpx.Response:
    return client.post(CHAT, json={**BODY, **more})


def test_a_message_of_the_sdk_is_accepted_as_history(server: ServerProcess) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as ai:
        first = ai.chat.completions.create(**BODY).choices[0].message
        for dumped in (first.model_dump(), first, {**first.model_dump(), "annotations": [{"type": "url_citation"}]}):
            again = ai.chat.completions.create(**{**BODY, "messages": [USER, dumped, USER]})
            assert again.choices[0].finish_reason


@pytest.mark.parametrize(
    "history",
    [
        [{**USER, "name": "critic"}],
        [{"role": "developer", "content": "short"}, USER],
        [USER, {"role": "assistant", "content": None, "refusal": "no"}, USER],
        [USER, {"role": "assistant", "content": None, "audio": {"id": "a"}, "reasoning_content": "hm"}, USER],
        [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]},
         {"role": "tool", "tool_call_id": "c1", "content": "2"}],
        [USER, {"role": "assistant", "function_call": {"name": "add", "arguments": "{"}},
         {"role": "function", "name": "add", "content": "2"}],
        [{"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}]}],
    ],
)  # fmt: skip
def test_messages_of_every_kind_are_accepted(client: httpx.Client, history: list[Any]) -> None:
    taken = answer(client, messages=history)
    assert taken.status_code == 200, taken.text
    assert "x-unmask-ignored" not in taken.headers


def test_calls_are_not_lost_with_a_template_without_tools(client: httpx.Client, checkpoint: Path) -> None:
    result = {"role": "tool", "tool_call_id": "c1", "content": "2"}
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, result]
    ids = client.post("/tokenize", json={"messages": messages}).json()["tokens"]
    text = Tokenizer(checkpoint).decode(ids)
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>' in text
    assert "<role>user</role><tool_response>\n2\n</tool_response>" in text


@pytest.mark.parametrize(
    ("history", "param", "message"),
    [
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages[0].content[0]",
         "messages[0].content[0]: image_url parts are not supported, only text"),
        ([{**USER, "tool_calls": [CALL]}], "messages[0].tool_calls",
         "messages[0].tool_calls: is allowed in assistant messages only; leave it out"),
        ([USER, {"role": "user", "content": None}], "messages[1].content",
         "messages[1].content: is missing; give a text"),
        ([USER, {"role": "assistant", "tool_calls": [{"function": {}}]}], "messages[1].tool_calls[0].function.name",
         "messages[1].tool_calls[0].function.name: Field required"),
    ],
)  # fmt: skip
def test_invalid_messages_are_refused_in_a_sentence(
    client: httpx.Client, history: list[Any], param: str, message: str
) -> None:
    refused = answer(client, messages=history)
    assert refused.status_code == 400
    assert (refused.json()["error"]["param"], refused.json()["error"]["message"]) == (param, message)


def test_fields_without_effect_are_accepted(client: httpx.Client) -> None:
    base = answer(client).json()["choices"]
    neutral = {
        "min_p": 0, "skip_special_tokens": True, "echo": False, "safety_identifier": "me", "prompt_cache_key": "k",
        "reasoning_effort": "low", "frequency_penalty": 0, "repetition_penalty": 1.0, "min_tokens": 0,
        "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none", "verbosity": "medium",
        "prediction": {"type": "content", "content": "x"}, "use_beam_search": False, "length_penalty": 1.0,
    }  # fmt: skip
    taken = answer(client, **neutral)
    assert taken.status_code == 200, taken.text
    assert taken.json()["choices"] == base
    assert "x-unmask-ignored" not in taken.headers


@pytest.mark.parametrize(
    "field",
    [
        {"skip_special_tokens": False}, {"echo": True}, {"length_penalty": 2},
        {"allowed_token_ids": [1]},
        {"bad_words": ["a"]}, {"documents": [{}]}, {"chat_template": "x"},
    ],
)  # fmt: skip
def test_unsupported_fields_that_would_change_the_answer_are_refused(
    client: httpx.Client, field: dict[str, Any]
) -> None:
    refused = answer(client, **field)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == next(iter(field))
    assert "is not supported" in refused.json()["error"]["message"]


def test_unknown_fields_are_ignored_and_named(checkpoint: Path) -> None:
    """Uses a separate server, because the log reports only a limited number of names."""
    arguments = ("--model", str(checkpoint), "--served-model-name", "tiny")
    with serving(*arguments, module=FAKE) as server, server.client() as client:
        odd = {
            "options": {"num_ctx": 5},
            "keep\r\nalive: 1é": 1,
            "left_empty": None,
            "messages": [{**USER, "hue": 1}] * 3,
        }
        for stream in (False, True):
            taken = answer(client, **odd, stream=stream)
            assert taken.status_code == 200
            assert set(taken.headers["x-unmask-ignored"].split(", ")) == {"options", "keep??alive??1?", "messages.hue"}
        assert server.log.count("Ignoring unsupported request field 'options' (logged once)") == 1
        assert "left_empty" not in server.log
        many = answer(client, **{f"field_{i}": i for i in range(500)})
        assert many.status_code == 200
        assert len(many.headers["x-unmask-ignored"].split(", ")) == 16
        assert answer(client, decoding={"wibble": 1}).status_code == 400


def test_strict_fields_refuses_unknown_fields(checkpoint: Path) -> None:
    arguments = ("--model", str(checkpoint), "--served-model-name", "tiny", "--strict-fields")
    with serving(*arguments) as server, server.client() as client:
        refused = answer(client, messages=[{**USER, "hue": 1}])
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "unknown_field"
        assert refused.json()["error"]["param"] == "messages.hue"
        assert answer(client).status_code == 200


def test_max_tokens_are_lowered_to_the_length_that_the_prompt_leaves(client: httpx.Client) -> None:
    prompt = "x" * 500
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 512, "ignore_eos": True}
    assert client.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 12
    longer = client.post("/v1/completions", json={**body, "max_tokens": 513})
    assert longer.json()["usage"]["completion_tokens"] == 12
    assert longer.headers["x-unmask-ignored"] == "max_tokens"


@pytest.mark.parametrize(
    ("path", "asked"),
    [(CHAT, {"messages": [USER]}), ("/v1/completions", {"prompt": "hello"}), ("/v1/responses", {"input": "hello"})],
)
def test_streams_are_not_obfuscated(client: httpx.Client, path: str, asked: dict[str, Any]) -> None:
    for requested in (False, None, True):
        body = {"model": "tiny", **asked, "stream": True, "stream_options": {"include_obfuscation": requested}}
        taken = client.post(path, json=body)
        assert taken.status_code == 200, taken.text
        assert "obfuscation" not in taken.text
        named = taken.headers.get("x-unmask-ignored")
        assert named == ("stream_options.include_obfuscation" if requested else None)
    refused = client.post(path, json={**body, "stream_options": {"include_obfuscation": "yes"}})
    assert refused.json()["error"]["param"] == "stream_options.include_obfuscation"


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/v1/models", "/openapi.json", "/docs"])
def test_head_is_get_without_a_body(client: httpx.Client, path: str) -> None:
    got, head = client.get(path), client.head(path)
    assert head.status_code == got.status_code == 200
    assert head.content == b""
    assert head.headers["content-type"] == got.headers["content-type"]
    assert client.get(path).status_code == 200  # the connection is still usable


def test_a_base_url_without_v1_serves_too(server: ServerProcess) -> None:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as ai:
        assert ai.chat.completions.create(**BODY).choices
        assert ai.completions.create(model="tiny", prompt="x", max_tokens=4).choices
        assert [model.id for model in ai.models.list()] == ["tiny"]
        assert ai.models.retrieve("tiny").id == "tiny"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_continuous_usage_is_in_every_chunk(client: httpx.Client, path: str) -> None:
    asked = {"messages": [USER]} if path == CHAT else {"prompt": "hello"}
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"max_tokens": 24, "ignore_eos": True, **asked, "stream": True, "stream_options": options}
    chunks = [json.loads(data) for data in sse(client.post(path, json=body).text)[:-1]]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 24
