"""Tests of the routes for editors: Mistral's /v1/fim/completions and llama.cpp's /infill."""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.golden import GOLDEN
from tests.server.checkpoint import EOS
from tests.server.harness import serving, sse

FIM, INFILL = "/v1/fim/completions", "/infill"
BEFORE, AFTER = "def f(", "): return 3\n"
VOCABULARY = 223  # of bytes; the mask is the next id, as in the config
SNIPPETS = [{"filename": "a.py", "text": "x = 1\n", "time": 1.5}, {"text": "y = 2"}]
# What llama.vim sends besides the texts.
VIM: dict[str, Any] = {
    "n_predict": 12, "n_indent": 4, "n_cmpl": 1, "top_k": 40, "top_p": 0.99, "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000, "stream": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def sighted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Yields a client of a server whose model sees the text after the cursor."""
    folder = tmp_path_factory.mktemp("models") / "llada"
    shutil.copytree(GOLDEN / "llada", folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda c: (not "!" <= c <= "~", c))
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet[:VOCABULARY])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|mask|>", special=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    with serving("--model", str(folder), "--served-model-name", "tiny") as server, server.client() as client:
        yield client


def answered(client: httpx.Client, route: str, **body: Any) -> Any:
    answer = client.post(route, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers.get("x-unmask-ignored", "") == ("n_indent, t_max_predict_ms" if "n_indent" in body else "")
    return answer.json()


def completed(client: httpx.Client, prompt: str, **body: Any) -> str:
    choice = answered(client, "/v1/completions", prompt=prompt, max_tokens=12, **body)["choices"][0]
    return str(choice["text"])


@pytest.mark.parametrize("server_kind", ["sighted", "client"])
def test_the_text_after_the_cursor_decides(request: pytest.FixtureRequest, server_kind: str) -> None:
    """A model that sees it fills a hole; another one reads it before the text before the cursor."""
    client = request.getfixturevalue(server_kind)
    blind = server_kind == "client"
    extra = "a.py\nx = 1\ny = 2\n"
    for after in (AFTER, "zzz", ""):
        behind = after if after.endswith("\n") or not after else after + "\n"
        same: dict[str, Any] = {"prompt": behind + BEFORE} if blind else {"prompt": BEFORE, "suffix": after}
        answer = answered(client, FIM, prompt=BEFORE, suffix=after, max_tokens=12)
        (choice,) = answer["choices"]
        assert choice["message"] == {"role": "assistant", "content": completed(client, **same), "tool_calls": None}
        assert blind or not after or answer["usage"]["completion_tokens"] == 12
        same["prompt"] = extra + same["prompt"]
        parts = {"input_prefix": "", "prompt": BEFORE, "input_suffix": after, "input_extra": SNIPPETS}
        infill = answered(client, INFILL, **parts, **VIM)
        assert infill["content"] == completed(client, **same, top_k=40, top_p=0.99)
        assert infill["tokens_evaluated"] == len(same["prompt"] + same.get("suffix", ""))
    texts = {answered(client, FIM, prompt=BEFORE, suffix=after)["choices"][0]["message"]["content"]
             for after in (AFTER, "zzz")}  # fmt: skip
    assert len(texts) == 2


def test_a_stream_of_mistral_has_text_in_every_chunk_and_the_usage_in_the_last(client: httpx.Client) -> None:
    body = {"prompt": BEFORE, "suffix": AFTER, "max_tokens": 20}
    answer = answered(client, FIM, **body)
    *chunks, last = [json.loads(data) for data in sse(client.post(FIM, json={**body, "stream": True}).text)[:-1]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta["content"] for delta in deltas) == answer["choices"][0]["message"]["content"]
    assert last["choices"] == [{"index": 0, "delta": {"content": ""}, "finish_reason": "length"}]
    assert last["usage"] | {"prompt_tokens_details": None} == answer["usage"] | {"prompt_tokens_details": None}
    assert not any("usage" in chunk for chunk in chunks)


def test_a_stream_of_llama_cpp_ends_with_its_last_event(client: httpx.Client) -> None:
    body = {"input_prefix": BEFORE, "input_suffix": AFTER, "n_predict": 20, "return_tokens": True}
    answer = answered(client, INFILL, **body)
    *chunks, last = [json.loads(data) for data in sse(client.post(INFILL, json={**body, "stream": True}).text)]
    assert "".join(chunk["content"] for chunk in chunks) == answer["content"]
    assert [chunk["stop"] for chunk in chunks] == [False] * len(chunks)
    assert (last["stop"], last["content"], last["tokens"]) == (True, "", answer["tokens"])
    assert len(answer["tokens"]) == answer["tokens_predicted"] == 20


@pytest.mark.parametrize(
    ("more", "kind", "word"),
    [({}, "limit", ""), ({"logit_bias": {str(EOS): 100}}, "eos", ""), ({"stop": ["s"]}, "word", "s")],
)
def test_the_end_has_a_type(client: httpx.Client, more: dict[str, Any], kind: str, word: str) -> None:
    bias = {"logit_bias": {str(ord("s") - ord("!")): 100}} if word else {}
    answer = answered(client, INFILL, input_prefix=BEFORE, input_suffix="", n_predict=4, **bias, **more)
    assert (answer["stop_type"], answer["stopping_word"]) == (kind, word)
    reason = answered(client, FIM, prompt=BEFORE, max_tokens=4, **bias, **more)["choices"][0]["finish_reason"]
    assert reason == ("length" if kind == "limit" else "stop")


def test_editors_select_fields_by_paths(client: httpx.Client) -> None:
    paths = ["content", "timings/prompt_n", "truncated", "timings/nothing", "content/x", "nothing"]
    body = {"input_prefix": BEFORE, "input_suffix": AFTER, "n_predict": 4}
    answer = answered(client, INFILL, **body, response_fields=paths)
    assert answer.keys() == {"content", "timings/prompt_n", "truncated"}
    assert answer["content"] == answered(client, INFILL, **body)["content"]


def test_no_tokens_fill_the_prefix_cache(client: httpx.Client) -> None:
    parts = {"input_prefix": "", "input_suffix": "", "prompt": "", "input_extra": [{"text": "warm " * 40}]}
    warmed = answered(client, INFILL, **parts, n_predict=0, samplers=[], t_max_predict_ms=0)
    assert (warmed["content"], warmed["tokens_predicted"], warmed["tokens_cached"]) == ("", 0, 0)
    answer = answered(client, INFILL, **{**parts, "input_prefix": "a\n"}, n_predict=2)
    assert answer["timings"]["cache_n"] == answer["tokens_cached"] > 150


@pytest.mark.parametrize("server_kind", ["sighted", "client"])
def test_texts_that_are_too_long_are_cut_far_from_the_cursor(request: pytest.FixtureRequest, server_kind: str) -> None:
    client = request.getfixturevalue(server_kind)
    length = client.get("/v1/models").json()["data"][0]["max_model_len"]
    extra = [{"text": "a" * 30}, {"text": "b" * 20}]
    body = {"input_prefix": "p" * (length // 2), "input_suffix": "s" * 40, "n_predict": 4}
    free = length - len(body["input_prefix"]) - 4 - len(body["input_suffix"]) - 1
    padded = {"text": "c" * (free - 25)}
    answer = answered(client, INFILL, **body, input_extra=[padded, *extra])
    kept = answered(client, INFILL, **body, input_extra=extra)
    assert (answer["truncated"], answer["content"]) == (True, kept["content"])
    assert kept["truncated"] is False
    long = {"input_prefix": "x" * length + "p" * length, "input_suffix": "s" * length, "n_predict": 4}
    cut = answered(client, INFILL, **long, input_extra=extra)
    assert (cut["truncated"], cut["tokens_predicted"]) == (True, 4)
    assert length - 8 <= cut["tokens_evaluated"] <= length - 4
    same = {**long, "input_prefix": "p" * length}
    assert cut["content"] == answered(client, INFILL, **same)["content"]
    assert answered(client, INFILL, **{**long, "n_predict": length})["tokens_predicted"] >= length // 4


REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    (FIM, "prompt", {}),
    (FIM, "prompt", {"prompt": ""}),
    (FIM, "prompt", {"prompt": "a" * 300, "suffix": "b" * 300}),
    (FIM, "max_tokens", {"prompt": "a", "max_tokens": 0}),
    (FIM, "random_seed", {"prompt": "a", "random_seed": 1, "seed": 2}),
    (FIM, "random_seed", {"prompt": "a", "random_seed": 2**70}),
    (FIM, "n", {"prompt": "a", "n": 2}),
    (INFILL, "input_suffix", {"input_prefix": "a"}),
    (INFILL, "input_prefix", {"input_suffix": "a"}),
    (INFILL, "input_prefix", {"input_prefix": "", "input_suffix": ""}),
    (INFILL, "prompt", {"input_prefix": "a", "input_suffix": "", "prompt": [5]}),
    (INFILL, "input_extra[0].text", {"input_prefix": "a", "input_suffix": "", "input_extra": [{"filename": "b"}]}),
    (INFILL, "n_predict", {"input_prefix": "a", "input_suffix": "", "n_predict": 4, "max_tokens": 5}),
    (INFILL, "n_predict", {"input_prefix": "a", "input_suffix": "", "n_predict": -2}),
    (INFILL, "repeat_penalty", {"input_prefix": "a", "input_suffix": "", "repeat_penalty": -1}),
    (INFILL, "lora", {"input_prefix": "a", "input_suffix": "", "lora": [{"id": 0, "scale": 0.5}]}),
    (INFILL, "mirostat", {"input_prefix": "a", "input_suffix": "", "mirostat": 2}),
]


@pytest.mark.parametrize(("route", "param", "body"), REFUSED)
def test_refusals_name_the_field(client: httpx.Client, route: str, param: str, body: dict[str, Any]) -> None:
    answer = client.post(route, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_a_hole_of_no_tokens_is_empty(sighted: httpx.Client) -> None:
    answer = answered(sighted, INFILL, input_prefix=BEFORE, input_suffix=AFTER, n_predict=0)
    assert (answer["content"], answer["tokens_predicted"], answer["stop_type"]) == ("", 0, "limit")


def test_a_hole_is_full(sighted: httpx.Client) -> None:
    hole: dict[str, Any] = {"prompt": BEFORE, "suffix": AFTER, "max_tokens": 12}
    complete = answered(sighted, FIM, **hole)
    assert answered(sighted, FIM, **hole, min_tokens=12, random_seed=5)["choices"] == complete["choices"]
    for param, value in (("min_tokens", 13), ("max_nfe", 3), ("max_repetition_run", 2)):
        answer = sighted.post(FIM, json={**hole, param: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
