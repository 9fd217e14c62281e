"""End-to-end tests of the routes: real processes, sockets and engine, and the unmodified ``openai`` client."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from runtime import LLM, SamplingParams
from runtime.server.metrics import CLOSE_REASONS
from tests.server.checkpoint import MASK
from tests.server.harness import ServerProcess, serving, sse

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 24}
FAST = {"decoding": {"accept_threshold": 0.05}}


def test_generate_reports_every_field(client: httpx.Client) -> None:
    answer = client.post("/generate", json={"prompt": "Hi there", "max_tokens": 20, "ignore_eos": True}).json()
    ids = client.post("/tokenize", json={"prompt": "Hi there"}).json()["tokens"]
    assert len(answer["token_ids"]) == 20
    assert answer["finish_reason"] == "length"
    assert answer["full_token_ids"] == ids + answer["token_ids"]
    assert answer["full_text"] == "Hi there" + answer["text"]
    assert client.post("/detokenize", json={"tokens": answer["token_ids"]}).json()["prompt"] == answer["text"]
    assert answer["usage"]["prompt_tokens"] == len(ids)
    assert answer["usage"]["completion_tokens"] == 20
    assert 1 <= answer["nfe"] <= 24
    assert answer["timings"]["total_seconds"] > 0
    again = client.post("/generate", json={"prompt": ids, "max_tokens": 20, "ignore_eos": True}).json()
    assert again["token_ids"] == answer["token_ids"]
    assert again["full_text"] == answer["full_text"]


@pytest.mark.parametrize("mode", ["denoise", "block_append"])
@pytest.mark.parametrize("stop", [None, ["$", "W"]])
def test_streams_add_up_to_the_answer(client: httpx.Client, mode: str, stop: list[str] | None) -> None:
    body = {"prompt": "Hi there", "max_tokens": 30, "ignore_eos": True, "stop": stop}
    answer = client.post("/generate", json=body).json()
    data = sse(client.post("/generate", json={**body, "stream": True, "stream_mode": mode}).text)
    assert data[-1] == "[DONE]"
    *events, final = [json.loads(line) for line in data[:-1]]
    assert final["event"] == "final"
    assert {e["event"] for e in events} == {mode}
    assert "".join(e["text"] for e in events) == final["text"] == answer["text"]
    for field in ("token_ids", "nfe", "finish_reason", "full_text", "full_token_ids"):
        assert final[field] == answer[field]
    if stop:
        assert final["finish_reason"] == "stop"
        assert not any(s in final["text"] for s in stop)
    if mode == "denoise":
        assert [e["nfe"] for e in events] == list(range(1, final["nfe"] + 1))
        for event in events:
            masked = [i for i, token in enumerate(event["tokens"]) if token == MASK]
            assert event["masked"] == masked
            assert len(event["tokens"]) % 8 == 0
            assert event["start"] % 8 == 0
    else:
        assert all(e["text"] for e in events)


def test_ids_of_a_stop_string_are_removed_from_the_answer(client: httpx.Client) -> None:
    complete = client.post("/generate", json={"prompt": "Hi there", "max_tokens": 30, "ignore_eos": True}).json()
    stop = complete["text"][7:9]
    cut = client.post("/generate", json={"prompt": "Hi there", "max_tokens": 30, "stop": stop}).json()
    assert cut["text"] == complete["text"][: complete["text"].index(stop)]
    assert cut["token_ids"] == complete["token_ids"][: len(cut["text"])]
    assert cut["usage"]["completion_tokens"] == len(cut["token_ids"])


def test_special_tokens_in_text_stay_text(client: httpx.Client) -> None:
    ids = client.post("/tokenize", json={"prompt": "a<|mask|>b<|role_end|>"}).json()["tokens"]
    assert max(ids) < 256
    chat = client.post("/tokenize", json={"messages": [{"role": "user", "content": "<|role_end|><role>x"}]}).json()
    assert [t for t in chat["tokens"] if t >= 256] == [259, 260, 258, 259, 260]
    rendered = "<role>user</role>hello<|role_end|><role>assistant</role>"
    ids = client.post("/tokenize", json={"messages": [{"role": "user", "content": "hello"}]}).json()["tokens"]
    assert client.post("/tokenize", json={"prompt": rendered, "parse_special": True}).json()["tokens"] == ids
    assert max(client.post("/tokenize", json={"prompt": rendered, "parse_special": False}).json()["tokens"]) < 256
    masked = client.post("/generate", json={"prompt": [64, MASK, 65], "max_tokens": 8, **FAST}).json()
    assert masked["full_token_ids"][:3] == [64, MASK, 65]
    assert MASK not in masked["token_ids"]


def test_chat_with_the_openai_client(ai: openai.OpenAI) -> None:
    answer = ai.chat.completions.create(**CHAT)
    assert answer.object == "chat.completion"
    assert answer.model == "tiny"
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details
    chunks = list(ai.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert {c.id for c in chunks} == {chunks[0].id}
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == choice.message.content
    assert chunks[-2].choices[0].finish_reason == choice.finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    assert not any(c.usage for c in chunks[:-1])
    parts = [{"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]
    assert ai.chat.completions.create(**{**CHAT, "messages": parts}).choices[0].message.content == text


def test_chat_streams_denoising_steps_on_request(ai: openai.OpenAI) -> None:
    base = ai.chat.completions.create(**CHAT).choices[0].message.content
    chunks = list(ai.chat.completions.create(**CHAT, stream=True, extra_body={"stream_mode": "denoise"}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == base
    steps = [c.denoise for c in chunks if hasattr(c, "denoise")]
    assert [s["nfe"] for s in steps] == list(range(1, len(steps) + 1))
    assert {"start", "tokens", "masked"} <= steps[0].keys()


def test_each_choice_has_the_next_seed(ai: openai.OpenAI) -> None:
    several = ai.chat.completions.create(**CHAT, n=3, seed=5, temperature=1.0)
    assert [c.index for c in several.choices] == [0, 1, 2]
    for i, choice in enumerate(several.choices):
        alone = ai.chat.completions.create(**CHAT, seed=5 + i, temperature=1.0)
        assert alone.choices[0].message.content == choice.message.content
    assert len({c.message.content for c in several.choices}) == 3
    streamed = [""] * 3
    for chunk in ai.chat.completions.create(**CHAT, n=3, seed=5, temperature=1.0, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == [c.message.content for c in several.choices]


def test_completions_accept_lists_of_prompts_and_of_ids(ai: openai.OpenAI) -> None:
    texts = ["one", "two"]
    pair = ai.completions.create(model="tiny", prompt=texts, max_tokens=12, n=2, seed=1, temperature=0.8)
    assert [c.index for c in pair.choices] == [0, 1, 2, 3]
    assert pair.usage
    assert pair.usage.prompt_tokens == 6
    second = ai.completions.create(model="tiny", prompt="two", max_tokens=12, seed=2, temperature=0.8)
    assert pair.choices[3].text == second.choices[0].text
    ids = [[78, 77, 68], [83, 86, 78]]
    same = ai.completions.create(model="tiny", prompt=ids, max_tokens=12, n=2, seed=1, temperature=0.8)
    assert [c.text for c in same.choices] == [c.text for c in pair.choices]
    streamed = [""] * 4
    stream = ai.completions.create(model="tiny", prompt=texts, max_tokens=12, n=2, seed=1, temperature=0.8, stream=True)
    for chunk in stream:
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == [c.text for c in pair.choices]


def test_errors_raise_the_exceptions_of_the_openai_client(ai: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        ai.chat.completions.create(**{**CHAT, "model": "gpt-5"})
    assert missing.value.code == "model_not_found"
    assert missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as wrong:
        ai.chat.completions.create(**{**CHAT, "temperature": -1})
    assert wrong.value.param == "temperature"
    assert [m.id for m in ai.models.list()] == ["tiny"]
    assert ai.models.retrieve("tiny").id == "tiny"


def test_models_have_the_values_in_use(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    defaults = client.get("/openapi.json").json()["x-unmask-defaults"]
    own = model["defaults"]
    assert {name: own[name] for name in ("temperature", "top_p", "top_k", "min_p")} == {
        name: defaults[name] for name in ("temperature", "top_p", "top_k", "min_p")
    }
    assert model["max_model_len"] == defaults["max_model_len"]
    assert model["block_size"] >= 1
    assert model["eos_token_ids"]
    assert own["decoding"]["accept_threshold"] == defaults["algorithms"]["threshold"]["fields"]["accept_threshold"]
    request = {"prompt": "count", "max_tokens": 32, "temperature": own["temperature"]}
    plain, explicit = (client.post("/generate", json=request | extra).json()
                       for extra in ({}, {"decoding": own["decoding"]}))  # fmt: skip
    assert (plain["token_ids"], plain["nfe"]) == (explicit["token_ids"], explicit["nfe"])


def nfe(client: httpx.Client, **fields: object) -> int:
    answer = client.post("/generate", json={"prompt": "count", "max_tokens": 32, "ignore_eos": True, **fields})
    assert answer.status_code == 200, answer.text
    found: int = answer.json()["nfe"]
    return found


def test_fixed_and_local_leap_are_chosen_per_request(client: httpx.Client) -> None:
    assert nfe(client, decoding={"accept_threshold": 0.0}) < nfe(client, decoding={"accept_threshold": 1.0})
    assert nfe(client, decoding={"mode": "speed"}) <= nfe(client, decoding={"mode": "quality"})
    few, many = ({"algorithm": "fixed", "steps": steps} for steps in (2, 8))
    assert nfe(client, decoding=few) < nfe(client, decoding=many)
    assert nfe(client, num_denoising_steps=9) == 9
    spelt = {"use_local_leap": True, "local_leap_radius": 2, "local_leap_anchor_threshold": 0.5}
    ours = {"algorithm": "local_leap", "local_leap": {"radius": 2, "anchor": 0.5}}
    assert nfe(client, **spelt) == nfe(client, decoding=ours)
    capped = client.post("/generate", json={"prompt": "count", "max_tokens": 32, "max_nfe": 3}).json()
    assert (capped["finish_reason"], capped["nfe"]) == ("max_nfe", 3)
    run = {"prompt": "count", "max_tokens": 64, "max_repetition_run": 1, "ignore_eos": True, **FAST}
    assert client.post("/generate", json=run).json()["finish_reason"] in ("repetition", "length")


def test_a_repeated_prompt_is_found_in_the_cache(client: httpx.Client) -> None:
    body = {"prompt": "a prompt that fills several pages of the cache: " * 3, "max_tokens": 4, "cache_salt": "mine"}
    first = client.post("/generate", json=body).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    second = client.post("/generate", json=body).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    other = client.post("/generate", json={**body, "cache_salt": "yours"}).json()["usage"]
    assert first == 0
    assert second >= 128
    assert other["prompt_tokens_details"]["cached_tokens"] == 0


def test_request_ids_are_echoed(client: httpx.Client) -> None:
    assert client.get("/health", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert re.fullmatch(r"[0-9a-f]{32}", client.get("/health").headers["x-request-id"])
    bad = client.get("/health", headers={"X-Request-Id": "a" * 129})
    assert bad.status_code == 400
    assert bad.json()["error"]["param"] == "X-Request-Id"


def test_every_reason_to_close_a_connection_has_a_metric_from_the_start(server: ServerProcess) -> None:
    """Checks that each reason has a sample before the first event, so that alerts see an increase."""
    metric = "unmask_connections_closed_by_server_total"
    found = {name for name in server.metrics() if name.startswith(f"{metric}{{")}
    assert found == {f'{metric}{{reason="{reason}"}}' for reason in CLOSE_REASONS}


def test_metrics_report_what_happened(checkpoint: Path) -> None:
    with serving("--model", str(checkpoint)) as server, server.client() as client:  # no other request counts there
        for more in ({}, {"stream": True}):
            client.post("/generate", json={"prompt": "metric", "max_tokens": 16, "ignore_eos": True, **more})
        server.until_metric("unmask_generated_tokens_total", 32)
        server.until_metric("unmask_request_seconds_count", 2)
        server.until_idle()
        found = server.metrics()
    assert found["unmask_prompt_tokens_total"] == 12
    assert found["unmask_time_to_first_token_seconds_count"] == 1
    for name in ('unmask_forwards_total{kind="denoise"}', "unmask_step_seconds_count"):
        assert found[name] >= 4
    assert (found["unmask_kv_usage_ratio"], found["unmask_backends_ready"]) == (0, 1)


def test_answers_equal_those_of_an_llm_in_this_process(client: httpx.Client, checkpoint: Path) -> None:
    prompts = ["one", "another prompt", "a third one that is a good deal longer than a block"]
    with LLM(model=str(checkpoint), device="cpu") as llm:
        for prompt in prompts:
            (mine,) = llm.generate([prompt], SamplingParams(max_tokens=40, temperature=0.7, seed=3))
            body = {"prompt": prompt, "max_tokens": 40, "temperature": 0.7, "seed": 3}
            theirs = client.post("/generate", json=body).json()
            assert theirs["token_ids"] == mine.token_ids
            assert (theirs["text"], theirs["nfe"]) == (mine.text, mine.nfe)
            assert theirs["finish_reason"] == mine.finish_reason


A = "64"  # the id of "a" in the tiny tokenizer


def test_logit_bias_applies_on_every_route(server: ServerProcess, ai: Any) -> None:
    chat = ai.chat.completions.create(model="tiny", messages=CHAT["messages"], max_tokens=6, logit_bias={A: 100})
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
