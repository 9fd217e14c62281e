"""Tests of inputs other than a prompt: texts with holes, a suffix, messages, text without a template; and of pages."""

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from runtime import LLM, SamplingParams
from runtime.server.admin.docs import pages
from tests.server.checkpoint import EOS
from tests.server.harness import KEY, ServerProcess, sse
from tests.server.pings import pinging


def fill(server: ServerProcess, **body: Any) -> Any:
    with server.client() as client:
        answer = client.post("/v1/infill", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_all_holes_are_filled_and_the_rest_stays(server: ServerProcess) -> None:
    texts = ["a  b\n", " <|mask|> \u00e9\u4e2d", "<role>x", " end \t"]
    answer = fill(server, text=f"{texts[0]}<mask:3>{texts[1]}<mask:1>{texts[2]}<mask:40>{texts[3]}")
    holes = [hole["text"] for hole in answer["holes"]]
    assert [len(hole["token_ids"]) for hole in answer["holes"]] == [3, 1, 40]
    assert answer["text"] == texts[0] + holes[0] + texts[1] + holes[1] + texts[2] + holes[2] + texts[3]
    assert answer["nfe"] >= 1
    assert answer["usage"]["completion_tokens"] == 44
    with server.client() as client:
        text_tokens = [client.post("/tokenize", json={"prompt": text}).json()["count"] for text in texts]
    assert answer["usage"]["prompt_tokens"] == sum(text_tokens)


def test_segments_give_the_same_answer_and_need_no_notation_for_holes(server: ServerProcess) -> None:
    by_text = fill(server, text="ab<mask:5>cd<mask:2>")
    parts = [{"text": "ab"}, {"mask": 5}, {"text": "cd"}, {"mask": 2}]
    assert fill(server, segments=parts)["holes"] == by_text["holes"]
    literal = fill(server, segments=[{"text": "<mask:9>"}, {"mask": 2}])
    assert literal["text"].startswith("<mask:9>")
    assert len(literal["holes"]) == 1


def test_messages_may_precede_the_text(server: ServerProcess) -> None:
    messages = [{"role": "user", "content": "hello"}]
    answer = fill(server, messages=messages, text="<mask:6>!")
    assert answer["text"].endswith("!")
    assert len(answer["holes"][0]["token_ids"]) == 6


def test_a_stream_shows_every_step_and_ends_with_the_full_text(server: ServerProcess) -> None:
    body = {"text": "ab<mask:12>cd", "stream": True, "decoding": {"algorithm": "sequential"}}
    with server.client() as client:
        events = [json.loads(data) for data in sse(client.post("/v1/infill", json=body).text)[:-1]]
    *steps, last = events
    assert last["event"] == "final"
    assert last["text"].startswith("ab")
    assert last["text"].endswith("cd")
    assert [len(step["masked"]) for step in steps[:3]] == [5, 4, 3]  # masks of the open block
    assert not steps[-1]["masked"]
    assert last["nfe"] == 12


def test_no_hole_ends_early(server: ServerProcess) -> None:
    answer = fill(server, text="a<mask:64>b", temperature=3.0, seed=1, stop_token_ids=[])
    ids = answer["holes"][0]["token_ids"]
    with server.client() as client:
        decoded = client.post("/detokenize", json={"tokens": ids, "return_bytes": True}).json()
    assert len(ids) == 64
    assert None not in decoded["bytes"]


def test_many_pieces_are_refused_while_others_are_answered(server: ServerProcess) -> None:
    pieces = [{"text": "ab cd " * 300}] * 900
    with server.client() as client, pinging(server):
        answer = client.post("/v1/infill", json={"segments": [{"text": "a"}, {"mask": 2}, *pieces]})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_detokenize_returns_the_bytes_of_tokens(server: ServerProcess) -> None:
    with server.client() as client:
        ids = client.post("/tokenize", json={"prompt": "a\u00e9"}).json()["tokens"]
        decoded = client.post("/detokenize", json={"tokens": ids, "return_bytes": True}).json()
        assert b"".join(map(bytes, decoded["bytes"])) == "a\u00e9".encode()
        assert "bytes" not in client.post("/detokenize", json={"tokens": ids}).json()
        many = client.post("/detokenize", json={"tokens": ids * 4096, "return_bytes": True})
        assert many.status_code == 400
        assert many.json()["error"]["param"] == "tokens"


def test_pages_need_no_key_and_are_cached_by_content(keyed: ServerProcess, server: ServerProcess) -> None:
    own = {path: page for path, page in pages().items() if path == "/" or path.startswith("/playground/")}
    assert {"/", "/playground/main.js", "/playground/playground.css"} <= own.keys()
    assert sum(len(page.content) for page in own.values()) <= 120_000
    assert all(b"://" not in page.content.replace(b"http://www.w3.org/2000/svg", b"") for page in own.values())
    with keyed.client() as client:
        for path in pages():
            got = client.get(path)
            assert got.status_code == 200
            assert "default-src 'none'" in got.headers["content-security-policy"]
            for tags in (got.headers["etag"], f'"other", W/{got.headers["etag"]}'):
                again = client.get(path, headers={"If-None-Match": tags})
                assert (again.status_code, again.content) == (304, b"")
            assert client.get(path, headers={"Host": "a/b?c#d"}).content == got.content
        assert client.get("/playground/../pages.py").status_code in (401, 404)
        assert client.get("/openapi.json").status_code == 401
        newline = client.get("/docs%0A", headers={"Authorization": f"Bearer {KEY}"})  # matches the route too
        assert newline.status_code == 200
        assert client.get("/playground/state").json()["api_key_required"] is True
    with server.client() as client:
        state = client.get("/playground/state").json()
    assert (state["loaded"], state["api_key_required"]) == (True, False)


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


def test_a_stream_with_a_suffix_has_the_text_of_the_complete_answer(ai: openai.OpenAI, client: httpx.Client) -> None:
    body: dict[str, Any] = {"model": "tiny", "prompt": "ab", "suffix": "cd" * 20, "max_tokens": 20}
    text = complete(client, **body)["choices"][0]["text"]
    chunks = list(ai.completions.create(**body, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == text
    assert chunks[-1].choices[0].finish_reason == "length"
    denoise = client.post("/v1/completions", json={**body, "stream": True, "stream_mode": "denoise"}).text
    assert "".join(json.loads(data)["choices"][0]["text"] for data in sse(denoise)[:-1]) == text


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


def test_generate_accepts_messages(client: httpx.Client) -> None:
    made = client.post("/generate", json={"messages": [USER], "max_tokens": 16}).json()
    chat = client.post("/v1/chat/completions", json={"messages": [USER], "max_tokens": 16}).json()
    ids = client.post("/tokenize", json={"messages": [USER]}).json()["tokens"]
    assert made["text"] == chat["choices"][0]["message"]["content"]
    assert made["full_token_ids"] == ids + made["token_ids"]
    assert made["full_text"] == "<role>user</role>hello<|role_end|><role>assistant</role>" + made["text"]


def test_an_empty_answer_to_a_prompt_without_template_has_a_warning(client: httpx.Client) -> None:
    silent = {"logit_bias": {str(EOS): 100}}  # the answer ends at once
    ids = client.post("/tokenize", json={"messages": [USER]}).json()["tokens"]
    for prompt in ("hello", [64, 65]):
        asked = {"prompt": prompt, **silent}
        made = complete(client, **asked)
        assert made["choices"][0]["text"] == ""
        assert "chat template" in made["warning"]
        chunks = sse(client.post("/v1/completions", json={**asked, "stream": True}).text)[:-1]
        assert [json.loads(chunk).get("warning") for chunk in chunks] == [made["warning"]]
        assert client.post("/generate", json=asked).json()["warning"] == made["warning"]
        last = sse(client.post("/generate", json={**asked, "stream": True}).text)[-2]
        assert json.loads(last)["warning"] == made["warning"]
    assert "warning" not in complete(client, prompt=ids, **silent)
    assert "warning" not in client.post("/generate", json={"messages": [USER], **silent}).json()
    assert "warning" not in complete(client, prompt="hello", suffix="x", **silent)
    assert "warning" not in complete(client, prompt="hello", max_tokens=8)


def test_a_prompt_with_the_text_of_a_special_token_has_a_warning(client: httpx.Client) -> None:
    text = "<role>user</role>hello<|role_end|>"
    for asked in ({"prompt": text}, {"prompt": ["a", text], "echo": True}, {"prompt": "a", "suffix": text}):
        body = {**asked, "max_tokens": 4}
        made = complete(client, **body)
        assert "special token" in made["warning"]
        chunks = [
            json.loads(chunk) for chunk in sse(client.post("/v1/completions", json={**body, "stream": True}).text)[:-1]
        ]
        assert made["warning"] in [chunk.get("warning") for chunk in chunks]
    for extra in ({}, {"stream": True}):
        assert "special token" in client.post("/generate", json={"prompt": text, "max_tokens": 4, **extra}).text
    ids = client.post("/tokenize", json={"messages": [USER]}).json()["tokens"]
    for prompt in ("a < b <role", ids):
        assert "warning" not in complete(client, prompt=prompt, max_tokens=4)
    assert "warning" not in client.post("/generate", json={"messages": [USER], "max_tokens": 4}).json()


def test_a_prompt_that_the_client_has_rendered_is_read_with_its_special_tokens(client: httpx.Client) -> None:
    text = "<role>user</role>hello<|role_end|><role>assistant</role>"
    ids = client.post("/tokenize", json={"messages": [USER]}).json()["tokens"]
    asked = {"max_tokens": 6, "temperature": 0, "parse_special": True}
    for extra in ({}, {"suffix": text}, {"echo": True, "logprobs": 1}, {"n": 2}):
        made, expected = (complete(client, prompt=prompt, **asked, **extra) for prompt in ([text, "a"], [ids, [64]]))
        assert made["choices"] == expected["choices"]
        assert made["usage"] == expected["usage"]
        assert "warning" not in made
    answer = complete(client, prompt=text, suffix=text, **asked)
    as_text = complete(client, prompt=text, suffix=text, max_tokens=6, temperature=0)
    assert answer["usage"]["prompt_tokens"] == 2 * len(ids) < as_text["usage"]["prompt_tokens"]
    own, chat = (client.post("/generate", json=body).json() for body in (
        {"prompt": text, **asked}, {"messages": [USER], "max_tokens": 6, "temperature": 0}))  # fmt: skip
    assert own["full_token_ids"] == chat["full_token_ids"]
    assert own["full_text"] == chat["full_text"]
    assert "warning" not in own


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
