"""Tests of ``POST /v1/infill``, which fills every hole and keeps the rest, and of the playground's routes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime.server.admin.docs import pages
from tests.server.harness import ServerProcess, serving, sse
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


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, "text", "either text or segments"),
        ({"text": "a<mask:2>", "segments": []}, "text", "either text or segments"),
        ({"text": "abc"}, "text", "no hole"),
        ({"text": ""}, "text", "no hole"),
        ({"segments": []}, "segments", "no hole"),
        ({"segments": [{"text": "a"}, {}]}, "segments[1]", "either text or mask"),
        ({"segments": [{"text": "a", "mask": 1}]}, "segments[0]", "either text or mask"),
        ({"segments": [{"text": "a"}, {"mask": -1}]}, "segments", "a hole of -1 tokens"),
        ({"segments": [{"text": "a"}, {"mask": "3"}]}, "segments[1].mask", "integer"),
        ({"text": "<mask:2>"}, "text", "begins with a hole"),
        ({"text": "a<mask:0>"}, "text", "a hole of 0 tokens"),
        ({"text": "a<mask:999999999>"}, "text", "from 1 to 4096"),
        ({"text": "a" + "<mask:1>b" * 257}, "text", "more than 256 holes"),
        ({"text": "a" + "<mask:1>" * 200_000}, "text", "more than 256 holes"),
        ({"text": "a<mask:4000>" + "b<mask:4000>" * 3}, "text", "the model's length"),
        ({"text": "a<mask:2>" + "b" * 5000 + "<mask:2>" + "c" * 5000}, "text", "the model's length"),
        ({"text": "a<mask:2>", "max_tokens": 4}, "max_tokens", "the holes determine the length"),
        ({"text": "a<mask:2>", "stop": "b"}, "stop", "the holes determine the length"),
        ({"text": "a<mask:2>", "stop_token_ids": [5]}, "stop_token_ids", "the holes determine the length"),
        ({"text": "a<mask:2>", "chat_template_kwargs": {"x": 1}}, "chat_template_kwargs", "only with messages"),
        ({"text": "a<mask:2>", "stream_mode": "denoise"}, "stream_mode", "only with stream"),
    ],
)
def test_errors_name_the_field_and_the_cause(
    server: ServerProcess, body: dict[str, Any], param: str, says: str
) -> None:
    with server.client() as client:
        answer = client.post("/v1/infill", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert says in error["message"]


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


def test_pages_are_small_need_no_key_and_are_cached_by_content(checkpoint: Any) -> None:
    own = {path: page for path, page in pages().items() if path == "/" or path.startswith("/playground/")}
    assert {"/", "/playground/main.js", "/playground/playground.css"} <= own.keys()
    assert sum(len(page.content) for page in own.values()) <= 120_000
    assert all(b"://" not in page.content.replace(b"http://www.w3.org/2000/svg", b"") for page in own.values())
    keyed = serving("--model", str(checkpoint), env={"UNMASK_API_KEY": "0123456789abcdef"})
    with keyed as server, server.client() as client:
        for path in pages():
            got = client.get(path)
            assert got.status_code == 200
            assert "default-src 'none'" in got.headers["content-security-policy"]
            again = client.get(path, headers={"If-None-Match": got.headers["etag"]})
            assert again.status_code == 304
            assert not again.content
            weak = {"If-None-Match": f'"other", W/{got.headers["etag"]}'}
            assert client.get(path, headers=weak).status_code == 304
            assert client.get(path, headers={"Host": "a/b?c#d"}).content == got.content
        assert client.get("/playground/../pages.py").status_code in (401, 404)
        assert client.get("/openapi.json").status_code == 401
        newline = client.get("/docs%0A", headers={"Authorization": "Bearer 0123456789abcdef"})  # matches the route too
        assert newline.status_code == 200


def test_the_state_needs_no_key_and_shows_that_requests_need_one(checkpoint: Any, server: ServerProcess) -> None:
    with server.client() as client:
        state = client.get("/playground/state").json()
        assert state["loaded"] is True
        assert state["api_key_required"] is False
    keyed = serving("--model", str(checkpoint), env={"UNMASK_API_KEY": "0123456789abcdef"})
    with keyed as locked, locked.client() as client:
        answer = client.get("/playground/state")
        assert answer.status_code == 200
        assert answer.json()["api_key_required"] is True
