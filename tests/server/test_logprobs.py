"""Tests of log-probabilities in responses: complete and streamed, of answers and of prompts."""

import asyncio
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest

from runtime import LLM, SamplingParams
from runtime.request.output import TokenLogprob
from runtime.server.openai.logprobs import ChatLogprobStreamer
from runtime.server.serving import logprobs
from runtime.server.serving.logprobs import in_chunks
from runtime.tokenizer import Tokenizer

USER: Any = [{"role": "user", "content": "hello"}]
ONE = {"decoding": {"algorithm": "sequential"}, "ignore_eos": True}


def data(content: list[Any]) -> bytes:
    return b"".join(bytes(one.bytes) for one in content)


def test_chat_logprobs_are_equal_complete_and_streamed(ai: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "messages": USER, "max_tokens": 20, "logprobs": True, "top_logprobs": 3,
                  "extra_body": {"ignore_eos": True}}  # fmt: skip
    complete = ai.chat.completions.create(**asked).choices[0]
    logprobs = complete.logprobs.content or []
    assert len(logprobs) == 20
    assert data(logprobs).decode("utf-8", "replace") == complete.message.content
    for one in logprobs:
        assert len(one.top_logprobs) == 3
        values = [other.logprob for other in one.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) <= 1 + 1e-6
        assert one.logprob <= values[0]
    streamed, text = [], ""
    for chunk in ai.chat.completions.create(**asked, stream=True):
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        if choice.logprobs is not None:
            streamed += choice.logprobs.content or []
            assert len(data(streamed).decode("utf-8", "replace")) <= len(text)
    assert text == complete.message.content
    assert streamed == logprobs


def test_tokens_are_reported_with_the_text_that_they_belong_to(checkpoint: Path) -> None:
    """Checks this also for an update that is written after the answer has continued or ended."""
    tokenizer = Tokenizer(checkpoint)
    ids = tokenizer.encode("abcdef")
    logprobs = [TokenLogprob(id, -1.0, []) for id in ids]
    spec = SimpleNamespace(logprobs=0)
    choice: Any = SimpleNamespace(token_logprobs=logprobs, text="abcdef", finish_reason="length", spec=spec)
    revealed = ChatLogprobStreamer(choice, tokenizer.byte_decoder)
    for length, ended, expected in ((2, False, ids[:2]), (2, False, []), (5, False, ids[2:5]), (5, True, ids[5:])):
        update: Any = SimpleNamespace(length=length, ended=ended)
        assert [entry.id for entry, _ in revealed.take_new(update)] == expected


def test_completion_logprobs_have_offsets(ai: openai.OpenAI, client: httpx.Client) -> None:
    asked: Any = {"model": "tiny", "prompt": "x", "max_tokens": 30, "logprobs": 2, "extra_body": {"ignore_eos": True}}
    choice = ai.completions.create(**asked).choices[0]
    logprobs = choice.logprobs
    assert logprobs.tokens is not None and logprobs.text_offset is not None and logprobs.token_logprobs is not None  # noqa: PT018
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs or []) == 30
    for word, offset, value, top in zip(
        logprobs.tokens, logprobs.text_offset, logprobs.token_logprobs, logprobs.top_logprobs or [], strict=True
    ):
        assert top[word] == value
        if not word.startswith("bytes:"):
            assert choice.text[offset : offset + len(word)] == word


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
def test_the_end_of_sequence_is_no_token_of_the_answer(client: httpx.Client, path: str, stream: bool) -> None:
    what = {"messages": USER, "logprobs": True} if "chat" in path else {"prompt": "x", "logprobs": 0}
    body = {**what, "max_tokens": 9, "logit_bias": {"257": 100}, "stream": stream}
    text = client.post(path, json=body).text
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line and not line.endswith("[DONE]")]
    answers = [json.loads(line) for line in lines]
    if path != "/generate":
        answers = [answer["choices"][0] for answer in answers]
    listed = [answer["logprobs"] for answer in answers if answer.get("logprobs")]
    assert answers[-1]["finish_reason"] == "stop"
    empty = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    assert all(one in ([], empty, {"content": [], "refusal": None}) for one in listed)


def test_the_logprobs_of_an_echo_have_one_entry_more_also_if_the_answer_is_empty(client: httpx.Client) -> None:
    """lm-eval drops the last entry: that of the answer, of which it requests one token."""
    asked = {"prompt": "xy", "max_tokens": 1, "logprobs": 0, "echo": True, "logit_bias": {"257": 100}}
    ended = client.post("/v1/completions", json=asked).json()["choices"][0]
    assert (ended["text"], ended["finish_reason"]) == ("xy", "stop")
    assert ended["logprobs"]["tokens"] == ["x", "y", "<|endoftext|>"]
    assert ended["logprobs"]["text_offset"] == [0, 1, 2]
    assert ended["logprobs"]["token_logprobs"][-1] < -0.5  # the model's value, without the bias


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_removes_the_logprobs_of_its_tokens(ai: openai.OpenAI, stream: bool) -> None:
    body: Any = {"decoding": {"algorithm": "sequential"}, "logit_bias": {"64": 90}, "ignore_eos": True}
    asked: Any = {"model": "tiny", "prompt": "x", "max_tokens": 12, "logprobs": 0, "extra_body": body}
    free = ai.completions.create(**asked).choices[0]
    assert free.text == "a" * 12
    if not stream:
        cut = ai.completions.create(**asked, stop="aaa").choices[0]
        assert (cut.text, cut.logprobs and cut.logprobs.tokens) == ("", [])
        return
    chunks = [chunk.choices[0] for chunk in ai.completions.create(**asked, stop="b", stream=True)]
    tokens = [word for chunk in chunks if chunk.logprobs for word in chunk.logprobs.tokens or []]
    assert "".join(tokens) == "".join(chunk.text for chunk in chunks) == "a" * 12


def test_logprobs_of_an_echoed_prompt_are_those_of_the_engine(client: httpx.Client, checkpoint: Path) -> None:
    prompt = "héllo you"
    asked = {"prompt": [prompt, prompt[::-1]], "logprobs": 2, "echo": True, "max_tokens": 0}
    answer = client.post("/v1/completions", json=asked).json()
    assert answer["usage"]["completion_tokens"] == 0
    for choice, text in zip(answer["choices"], asked["prompt"], strict=True):
        logprobs = choice["logprobs"]
        assert (choice["text"], choice["finish_reason"]) == (text, "length")
        assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
        assert len(logprobs["tokens"]) == len(text.encode())
        assert "".join(word for word in logprobs["tokens"] if not word.startswith("bytes:")) == text.replace("é", "")
    assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 1, 1, 2, 3, 4, 5, 6, 7, 8]
    with LLM(str(checkpoint), device="cpu") as llm:
        ids = llm.tokenizer.encode(prompt)
        (mine,) = llm.score([(ids[:1], ids[1:])], top=2)
        (quick,) = llm.score([(ids[:1], ids[1:])], stride=3)
        (out,) = llm.generate([ids], SamplingParams(max_tokens=1, temperature=0, logprobs=1, ignore_eos=True))
    values = answer["choices"][0]["logprobs"]["token_logprobs"][1:]
    assert values == pytest.approx([one.logprob for one in mine], abs=1e-3)
    assert [one.id for one in mine] == ids[1:]
    strided = client.post("/v1/completions", json={**asked, "prompt": prompt, "prompt_logprobs_stride": 3}).json()
    assert strided["choices"][0]["logprobs"]["token_logprobs"][1:] == pytest.approx(
        [one.logprob for one in quick], abs=1e-3
    )
    both = client.post("/v1/completions", json={**asked, "prompt": prompt, "max_tokens": 1, "ignore_eos": True}).json()
    logprobs = both["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == len(ids) + 1  # lm-eval splits the list by this length
    assert logprobs["token_logprobs"][-1] == pytest.approx(out.logprobs[0].logprob, abs=1e-3)
    assert both["choices"][0]["text"].startswith(prompt)


def test_an_echo_without_logprobs(client: httpx.Client) -> None:
    asked = {"prompt": "x", "max_tokens": 4, "echo": True, "ignore_eos": True}
    complete = client.post("/v1/completions", json=asked).json()["choices"][0]
    without_echo = client.post("/v1/completions", json={**asked, "echo": False}).json()["choices"][0]
    assert (complete["text"], complete["logprobs"]) == ("x" + without_echo["text"], None)
    with client.stream("POST", "/v1/completions", json={**asked, "stream": True}) as stream:
        lines = [line for line in stream.iter_lines() if line]
    pieces = [json.loads(line[6:])["choices"][0]["text"] for line in lines[:-1]]
    assert pieces[0] == "x"
    assert "".join(pieces) == complete["text"]
    nothing = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 0, "echo": True}).json()
    assert nothing["choices"][0]["text"] == "x"


def test_tokenizer_info_describes_the_tokenizer(client: httpx.Client) -> None:
    info = client.get("/tokenizer_info").json()
    assert (info["eos_token"], info["mask_token"]) == ("<|endoftext|>", "<|mask|>")
    assert "add_generation_prompt" in info["chat_template"]
    ids = client.post("/tokenize", json={"prompt": "ab", "add_special_tokens": False})
    assert ids.json()["count"] == 2
    assert "x-unmask-ignored" not in ids.headers


def test_log_probabilities_are_written_in_steps_between_which_other_tasks_run() -> None:
    async def write() -> tuple[list[int], int]:
        iterations = 0

        async def collect() -> list[int]:
            return [len(step) async for step in in_chunks(range(128 * 96), 21)]

        collecting = asyncio.create_task(collect())
        while not collecting.done():
            await asyncio.sleep(0)
            iterations += 1
        return collecting.result(), iterations

    sizes, iterations = asyncio.run(write())
    assert sum(sizes) == 128 * 96
    assert max(sizes) * 21 <= logprobs.LOGPROBS_PER_STEP
    assert iterations >= len(sizes)


@pytest.mark.parametrize("mode", [None, "denoise", "block_append"])
def test_generate_reports_each_id_complete_and_streamed(
    client: httpx.Client, checkpoint: Path, mode: str | None
) -> None:
    asked = {"prompt": "x", "max_tokens": 20, "logprobs": 2, "ignore_eos": True}
    complete = client.post("/generate", json=asked).json()
    logprobs = complete["logprobs"]
    assert [one["id"] for one in logprobs] == complete["token_ids"]
    if mode is not None:
        body = {**asked, "stream": True, "stream_mode": mode}
        with client.stream("POST", "/generate", json=body) as stream:
            *events, final = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: {")]
        assert final["logprobs"] == logprobs
        streamed = [one for event in events for one in event["logprobs"]]
        assert streamed == logprobs[: len(streamed)]
        assert len(streamed) > 10
        return
    with LLM(str(checkpoint), device="cpu") as llm:
        (mine,) = llm.generate(["x"], SamplingParams(max_tokens=20, temperature=0, logprobs=2, ignore_eos=True))
    assert [one["logprob"] for one in logprobs] == pytest.approx([one.logprob for one in mine.logprobs], abs=1e-3)
    for one, other in zip(logprobs, mine.logprobs, strict=True):
        assert [top["id"] for top in one["top_logprobs"]] == [id for id, _ in other.top]
    assert "logprobs" not in client.post("/generate", json={"prompt": "x", "max_tokens": 4}).json()


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
def test_special_tokens_are_ids_and_no_text(client: httpx.Client, path: str) -> None:
    what = {"messages": USER, "logprobs": True} if "chat" in path else {"prompt": "x", "logprobs": 0}
    body = {**what, "max_tokens": 9, "ignore_eos": True, "logit_bias": {"257": 100}}
    answer = client.post(path, json=body).json()
    assert answer["usage"]["completion_tokens"] == 9
    if path == "/generate":
        assert (answer["text"], answer["token_ids"]) == ("", [257] * 9)
        assert [one["token"] for one in answer["logprobs"]] == ["<|endoftext|>"] * 9
        return
    (choice,) = answer["choices"]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    assert (text or "", choice["finish_reason"]) == ("", "length")
    logprobs = choice["logprobs"]
    texts = logprobs["tokens"] if "tokens" in logprobs else [one["token"] for one in logprobs["content"]]
    assert texts == ["<|endoftext|>"] * 9
