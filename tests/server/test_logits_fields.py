"""Tests of request fields that change logits."""

from __future__ import annotations

from typing import Any

import httpx

from tests.server.harness import ServerProcess

USER = [{"role": "user", "content": "hello"}]
A = "64"  # the id of "a" in the tiny tokenizer


def test_logit_bias_applies_on_every_route(server: ServerProcess, ai: Any) -> None:
    chat = ai.chat.completions.create(model="tiny", messages=USER, max_tokens=6, logit_bias={A: 100})
    text = ai.completions.create(model="tiny", prompt="x", max_tokens=6, logit_bias={A: 100})
    assert chat.choices[0].message.content == text.choices[0].text == "aaaaaa"
    with server.client() as client:
        own = client.post("/generate", json={"prompt": "x", "max_tokens": 6, "logit_bias": {A: 100}}).json()
    assert own["token_ids"] == [int(A)] * 6


def test_stop_token_ids_and_min_tokens_apply(server: ServerProcess) -> None:
    body = {"prompt": "x", "max_tokens": 9, "logit_bias": {A: 50, "65": 60}, "stop_token_ids": [65], "temperature": 0}
    with server.client() as client:

        def answer(**more: Any) -> Any:
            return client.post("/generate", json={**body, **more}).json()

        assert (answer()["text"], answer()["finish_reason"]) == ("", "stop")
        later = answer(min_tokens=4)
        assert (later["text"], later["finish_reason"]) == ("aaaa", "stop")
        assert answer(min_tokens=9)["text"] == "a" * 9


def test_a_penalty_and_min_p_apply(server: ServerProcess, ai: Any) -> None:
    one = {"extra_body": {"decoding": {"algorithm": "sequential"}, "ignore_eos": True}, "max_tokens": 12}
    again = ai.completions.create(model="tiny", prompt="x", **one, presence_penalty=2, logit_bias={A: 1})
    free = ai.completions.create(model="tiny", prompt="x", **one, logit_bias={A: 1})
    assert again.choices[0].text != free.choices[0].text
    with server.client() as client:
        hot = {"prompt": "x", "max_tokens": 8, "ignore_eos": True, "temperature": 50, "seed": 1, "logit_bias": {A: 100}}
        greedy = client.post("/generate", json={**hot, "min_p": 0.5}).json()["token_ids"]
        assert greedy == [int(A)] * 8
        assert client.post("/generate", json=hot).json()["token_ids"] != greedy


def test_a_refusal_names_the_fix(server: ServerProcess) -> None:
    with server.client() as client:
        refused: httpx.Response = client.post("/generate", json={"prompt": "x", "max_tokens": 3, "min_tokens": 4})
    assert refused.status_code == 400
    message = "min_tokens: 4 is more than the 3 tokens of this output; lower it, or set a larger max_tokens"
    assert refused.json()["error"]["message"] == message
