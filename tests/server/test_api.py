"""End-to-end tests of the routes: real processes, sockets and engine, and the unmodified ``openai`` client."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import openai
import pytest

from runtime import LLM, SamplingParams
from runtime.server.metrics import CLOSE_REASONS
from tests.server.checkpoint import EOS, MASK
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


def test_neutral_openai_fields_are_accepted(client: httpx.Client) -> None:
    neutral = {
        "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "logprobs": False, "tools": [],
        "tool_choice": "auto", "response_format": {"type": "text"}, "n": 1, "user": "me", "metadata": {"a": "b"},
        "store": False, "service_tier": "auto", "parallel_tool_calls": True, "stop_token_ids": [], "min_tokens": 0,
        "top_logprobs": None, "functions": None, "max_completion_tokens": 24, "modalities": ["text"],
    }  # fmt: skip
    base = client.post("/v1/chat/completions", json=CHAT).json()
    answer = client.post("/v1/chat/completions", json={**CHAT, **neutral})
    assert answer.status_code == 200
    assert answer.json()["choices"] == base["choices"]
    text = {
        "model": "tiny",
        "prompt": "x",
        "max_tokens": 4,
        "echo": False,
        "best_of": 1,
        "suffix": "",
        "logprobs": None,
    }
    assert client.post("/v1/completions", json=text).status_code == 200


def nfe(client: httpx.Client, **fields: object) -> int:
    answer = client.post("/generate", json={"prompt": "count", "max_tokens": 32, "ignore_eos": True, **fields})
    assert answer.status_code == 200, answer.text
    found: int = answer.json()["nfe"]
    return found


def test_fixed_takes_the_number_of_steps_in_the_request(client: httpx.Client) -> None:
    few, many = ({"algorithm": "fixed", "steps": steps} for steps in (2, 8))
    assert nfe(client, decoding=few) < nfe(client, decoding=many)
    assert nfe(client, num_denoising_steps=9) == 9


def test_local_leap_accepts_the_names_of_dlmserve(client: httpx.Client) -> None:
    spelt = {"local_leap_radius": 2, "local_leap_anchor_threshold": 0.5}
    ours = {"algorithm": "local_leap", "local_leap": {"radius": 2, "anchor": 0.5}}
    assert nfe(client, use_local_leap=True, **spelt) == nfe(client, decoding=ours)


def test_decoding_is_chosen_per_request(client: httpx.Client) -> None:
    assert nfe(client, decoding={"accept_threshold": 0.0}) < nfe(client, decoding={"accept_threshold": 1.0})
    assert nfe(client, decoding={"mode": "speed"}) <= nfe(client, decoding={"mode": "quality"})
    capped = client.post("/generate", json={"prompt": "count", "max_tokens": 32, "max_nfe": 3}).json()
    assert capped["finish_reason"] == "max_nfe"
    assert capped["nfe"] == 3
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
    for metric in ("unmask_connections_closed_by_server_total", "unmask_connections_given_up_total"):
        found = {name for name in server.metrics() if name.startswith(f"{metric}{{")}
        assert found == {f'{metric}{{reason="{reason}"}}' for reason in CLOSE_REASONS}


def test_metrics_report_what_happened(checkpoint: Path) -> None:
    with serving("--model", str(checkpoint)) as server, server.client() as client:  # no other request counts there
        client.post("/generate", json={"prompt": "metric", "max_tokens": 16, "ignore_eos": True})
        client.post("/generate", json={"prompt": "metric", "max_tokens": 16, "ignore_eos": True, "stream": True})
        server.until_metric("unmask_generated_tokens_total", 32)
        server.until_metric("unmask_request_seconds_count", 2)
        server.until_idle()
        found = server.metrics()
    assert found["unmask_generated_tokens_total"] == 32
    assert found["unmask_prompt_tokens_total"] == 12
    assert found["unmask_time_to_first_token_seconds_count"] == 1
    assert found["unmask_request_seconds_count"] == 2
    assert found['unmask_forwards_total{kind="denoise"}'] >= 4
    assert found["unmask_step_seconds_count"] >= 4
    assert found["unmask_kv_usage_ratio"] == 0
    assert found["unmask_backends_ready"] == 1


def test_an_eos_token_ends_an_answer_and_is_not_part_of_it(client: httpx.Client) -> None:
    for seed in range(40):
        body = {"prompt": "end", "max_tokens": 200, "temperature": 1.5, "seed": seed, **FAST}
        answer = client.post("/generate", json=body).json()
        assert EOS not in answer["token_ids"]
        if answer["finish_reason"] == "stop":
            assert len(answer["token_ids"]) < 200
            return
    pytest.fail("no answer of 40 ended at an end token")


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
