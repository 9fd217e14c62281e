"""Tests of step maps and token ids in responses: complete and streamed, of every choice, cut with the answer."""

import itertools
import json
from typing import Any

import httpx
import pytest

from runtime.request.block_layout import BlockLayout
from tests.server.harness import sse

CHAT, TEXT, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
USER = [{"role": "user", "content": "hello"}]
ONE = {"algorithm": "sequential"}  # one token per step
NAMES = ("step_map", "last_step_map", "block_starts", "token_ids")


def choices_of(client: httpx.Client, path: str, **fields: Any) -> list[dict[str, Any]]:
    """Returns the choices of an answer, or of the last chunk of each choice in a stream, whose others have no map."""
    body = {"messages": USER} if path == CHAT else {"prompt": "x"}
    ids = {} if path == GENERATE else {"return_token_ids": True}
    sent = {**body, "max_tokens": 20, "ignore_eos": True, "temperature": 0, **ids, **fields}
    answer = client.post(path, json=sent)
    assert answer.status_code == 200, answer.text
    if not fields.get("stream"):
        return [answer.json()] if path == GENERATE else answer.json()["choices"]
    *lines, done = sse(answer.text)
    assert done == "[DONE]"
    events = list(map(json.loads, lines))
    if path == GENERATE:
        assert not [event for event in events[:-1] if "step_map" in event]
        return [events[-1]]
    choices = [choice for event in events for choice in event["choices"]]
    last = [choice for choice in choices if choice["finish_reason"] is not None]
    assert [choice for choice in choices if "step_map" in choice] == last
    return sorted(last, key=lambda choice: choice["index"])


@pytest.mark.parametrize("path", [CHAT, TEXT, GENERATE])
def test_every_choice_has_its_own_steps_complete_and_streamed(client: httpx.Client, path: str) -> None:
    fields: dict[str, Any] = {"return_step_map": True, "temperature": 1.0, "seed": 5}
    fields |= {} if path == GENERATE else {"n": 3}
    complete = choices_of(client, path, **fields)
    streamed = choices_of(client, path, **fields, stream=True)
    kept = [{name: choice.get(name) for name in NAMES} for choice in complete]
    assert kept == [{name: choice.get(name) for name in NAMES} for choice in streamed]
    for choice in complete:
        assert len(choice["step_map"]) == len(choice["token_ids"]) == 20
        assert "last_step_map" not in choice
    assert len({tuple(choice["token_ids"]) for choice in complete}) == len(complete)


def test_a_stop_string_cuts_the_steps_of_its_tokens(client: httpx.Client) -> None:
    """Also those after it, which the engine has made already."""
    fields = {"return_step_map": True, "decoding": ONE, "logit_bias": {"64": 90}}
    for path in (CHAT, TEXT, GENERATE):
        (free,) = choices_of(client, path, **fields)
        assert free["step_map"] == list(range(1, 21))
        biased = {**fields, "logit_bias": {"64": 90, "65": 89.99}}
        for stream in (False, True):
            (cut,) = choices_of(client, path, **biased, stop="aaa", stream=stream)
            assert (cut["step_map"], cut["block_starts"], cut["token_ids"]) == ([], [], [])
            (kept,) = choices_of(client, path, **fields, stop="b", max_tokens=9, stream=stream)
            assert kept["step_map"] == list(range(1, 10))


def test_blocks_begin_where_the_layout_has_them(client: httpx.Client) -> None:
    prompt = client.post("/tokenize", json={"prompt": "x"}).json()["tokens"]
    (answer,) = choices_of(client, GENERATE, return_step_map=True)
    size = client.get("/v1/models").json()["data"][0]["block_size"]
    assert answer["block_starts"] == [0, *range(size - len(prompt) % size, 20, size)]
    for layout, found in (
        (BlockLayout(8), [0, 5, 13]), (BlockLayout(8, from_prompt=True), [0, 8, 16]),
        (BlockLayout(32), [0]), (BlockLayout(3), [0, 3, 6, 9, 12, 15, 18]),
    ):  # fmt: skip
        assert layout.output_starts(3, 20) == found
        assert layout.output_starts(3, 0) == []


def test_sglangs_field_adds_sglangs_count(client: httpx.Client) -> None:
    """Its steps begin with 1 in each block."""
    fields = {"decoding": ONE, "max_tokens": 20}
    (ours,) = choices_of(client, GENERATE, return_step_map=True, **fields)
    starts = [*ours["block_starts"], 20]
    expected = [at - start + 1 for start, end in itertools.pairwise(starts) for at in range(start, end)]
    for asked in (True, [True]):
        (answer,) = choices_of(client, GENERATE, return_step_maps=asked, **fields)
        assert (answer["step_map"], answer["meta_info"]) == (ours["step_map"], {"step_maps": expected})
    assert "meta_info" not in ours
    for path in (CHAT, TEXT):
        (choice,) = choices_of(client, path, return_step_maps=True, **fields)
        assert choice["step_map"] == list(range(1, 21))
    (without,) = choices_of(client, GENERATE, return_step_maps=False)
    assert "step_map" not in without


def test_prompt_ids_are_those_of_the_template(client: httpx.Client) -> None:
    ids = client.post("/tokenize", json={"messages": USER}).json()["tokens"]
    asked = {"messages": USER, "max_tokens": 3, "return_token_ids": True}
    answer = client.post(CHAT, json=asked).json()
    assert (answer["prompt_token_ids"], len(answer["choices"][0]["token_ids"])) == (ids, 3)
    events = [json.loads(line) for line in sse(client.post(CHAT, json={**asked, "stream": True}).text)[:-1]]
    assert [event["prompt_token_ids"] for event in events if "prompt_token_ids" in event] == [ids]
    answers = client.post(TEXT, json={"prompt": ["x", [64, 65]], "max_tokens": 2, "return_token_ids": True}).json()
    assert [choice["prompt_token_ids"][-2:] for choice in answers["choices"]][1] == [64, 65]
    plain = client.post(CHAT, json={"messages": USER, "max_tokens": 3}).json()
    assert "prompt_token_ids" not in plain
    assert "token_ids" not in plain["choices"][0]
