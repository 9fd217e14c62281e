"""Tests of inputs of completions and ``/generate`` other than a prompt: a suffix, and messages.

They include the warning of an empty answer if a chat model gets a prompt without its template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from safetensors.numpy import load_file, save_file

from runtime import LLM, SamplingParams
from tests.server.checkpoint import EOS, write_checkpoint
from tests.server.harness import ServerProcess, serving, sse

USER = {"role": "user", "content": "hello"}


def complete(client: httpx.Client, **body: Any) -> Any:
    answer = client.post("/v1/completions", json={"model": "tiny", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_suffix_gives_the_answer_of_infill(client: httpx.Client) -> None:
    answer = complete(client, prompt="def f(", suffix="): return 3\n" * 4, max_tokens=12)
    same = client.post("/v1/infill", json={"text": "def f(<mask:12>" + "): return 3\n" * 4}).json()
    (choice,) = answer["choices"]
    assert choice["text"] == same["holes"][0]["text"]
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["usage"]["prompt_tokens"] == len("def f(" + "): return 3\n" * 4)
    assert answer["usage"] | {"prompt_tokens_details": None} == same["usage"] | {"prompt_tokens_details": None}


def test_a_stream_with_a_suffix_has_the_text_of_the_complete_answer(
    server: ServerProcess, client: httpx.Client
) -> None:
    body: dict[str, Any] = {"prompt": "ab", "suffix": "cd" * 20, "max_tokens": 20}
    text = complete(client, **body)["choices"][0]["text"]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as ai:
        chunks = list(ai.completions.create(model="tiny", **body, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == text
    assert chunks[-1].choices[0].finish_reason == "length"
    denoise = client.post("/v1/completions", json={**body, "stream": True, "stream_mode": "denoise"}).text
    steps = [json.loads(data) for data in sse(denoise)[:-1]]
    assert "".join(step["choices"][0]["text"] for step in steps) == text


def test_a_suffix_can_be_combined_with_stop_n_and_several_prompts(client: httpx.Client) -> None:
    complete_answer = complete(client, prompt=["ab", "abc"], suffix="cd", max_tokens=12, n=2, temperature=2.0, seed=3)
    assert [choice["index"] for choice in complete_answer["choices"]] == [0, 1, 2, 3]
    assert len({choice["text"] for choice in complete_answer["choices"]}) > 1
    text = complete(client, prompt="ab", suffix="cd", max_tokens=12)["choices"][0]["text"]
    cut = complete(client, prompt="ab", suffix="cd", max_tokens=12, stop=text[4:6])["choices"][0]
    assert cut == {"index": 0, "text": text[: text.index(text[4:6])], "logprobs": None, "finish_reason": "stop"}


def test_max_tokens_with_a_suffix_are_limited_by_the_models_length(client: httpx.Client) -> None:
    assert complete(client, prompt="a", suffix="b")["usage"]["completion_tokens"] == 16
    assert complete(client, prompt="a" * 500, suffix="b" * 4, max_tokens=400)["usage"]["completion_tokens"] == 8
    assert complete(client, prompt="a", suffix="", max_tokens=3, ignore_eos=True)["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "a", "suffix": "b" * 600}, "suffix"),
        ({"prompt": "a" * 510, "suffix": "bb"}, "suffix"),
        ({"prompt": "a", "suffix": 3}, "suffix"),
        ({"prompt": "a", "suffix": "b", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "suffix": "b", "max_nfe": 3}, "max_nfe"),
        ({"prompt": "a", "suffix": "b", "response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_an_invalid_suffix_is_refused(client: httpx.Client, body: dict[str, Any], param: str) -> None:
    refused = client.post("/v1/completions", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param


def test_generate_accepts_messages(client: httpx.Client) -> None:
    made = client.post("/generate", json={"messages": [USER], "max_tokens": 16}).json()
    chat = client.post("/v1/chat/completions", json={"messages": [USER], "max_tokens": 16}).json()
    ids = client.post("/tokenize", json={"messages": [USER]}).json()["tokens"]
    assert made["text"] == chat["choices"][0]["message"]["content"]
    assert made["full_token_ids"] == ids + made["token_ids"]
    assert made["full_text"] == "<role>user</role>hello<|role_end|><role>assistant</role>" + made["text"]
    for body, param in (
        ({}, "prompt"),
        ({"prompt": "a", "messages": [USER]}, "prompt"),
        ({"prompt": "a", "chat_template_kwargs": {}}, "chat_template_kwargs"),
        ({"messages": []}, "messages"),
        ({"messages": [USER] * 100}, "messages"),
    ):
        refused = client.post("/generate", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Yields a server of a model that generates only the EOS token."""
    directory = write_checkpoint(tmp_path_factory.mktemp("models") / "silent")
    weights = load_file(directory / "model.safetensors")
    for name, weight in weights.items():
        weight[...] = 1 if "norm" in name or "embeddings" in name else 0
    weights["lm_head.weight"][EOS] = np.ones_like(weights["lm_head.weight"][EOS])
    save_file(weights, directory / "model.safetensors")
    with serving("--model", str(directory), "--served-model-name", "tiny") as server:
        yield server


def test_an_empty_answer_to_a_prompt_without_template_has_a_warning(
    silent: ServerProcess, client: httpx.Client
) -> None:
    with silent.client() as quiet:
        ids = quiet.post("/tokenize", json={"messages": [USER]}).json()["tokens"]
        for prompt in ("hello", [64, 65]):
            made = complete(quiet, prompt=prompt)
            assert made["choices"][0]["text"] == ""
            assert "chat template" in made["warning"]
            assert "messages" in made["warning"]
            data = sse(quiet.post("/v1/completions", json={"prompt": prompt, "stream": True}).text)
            assert [json.loads(chunk).get("warning") for chunk in data[:-1]] == [made["warning"]]
            assert quiet.post("/generate", json={"prompt": prompt}).json()["warning"] == made["warning"]
            last = sse(quiet.post("/generate", json={"prompt": prompt, "stream": True}).text)[-2]
            assert json.loads(last)["warning"] == made["warning"]
        assert "warning" not in complete(quiet, prompt=ids)
        assert "warning" not in quiet.post("/generate", json={"messages": [USER]}).json()
        assert "warning" not in complete(quiet, prompt="hello", suffix="x")
    assert "warning" not in complete(client, prompt="hello", max_tokens=8)


def test_llm_chat_applies_the_chat_template(checkpoint: Path) -> None:
    with LLM(str(checkpoint), device="cpu") as llm:
        params = SamplingParams(max_tokens=16)
        (one,) = llm.chat([USER], params)
        two = llm.chat([[USER], [USER, {"role": "assistant", "content": "x"}, USER]], params)
        assert one.text == two[0].text == llm.generate([[USER]], params)[0].text
        assert two[1].usage["prompt_tokens"] > two[0].usage["prompt_tokens"]
        (open_ended,) = llm.chat([USER], params, chat_template_kwargs={"add_generation_prompt": False})
        assert open_ended.usage["prompt_tokens"] < one.usage["prompt_tokens"]
        with pytest.raises(ValueError, match="role"):
            llm.chat([{"content": "x"}])
        for text in ("hello", ["hello"]):
            with pytest.raises(ValueError, match=r"messages\[0\]: must be an object"):
                llm.chat(text)
    with LLM(str(checkpoint), device="cpu", skip_tokenizer=True) as llm, pytest.raises(ValueError, match="tokenizer"):
        llm.chat([USER])
