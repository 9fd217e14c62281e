"""Tests of invalid input: each request gets its status and the name of the field, and 200 others are unaffected."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from runtime.algorithms.base import UnmaskingAlgorithm, algorithm_keys, algorithms_for, get_algorithm
from tests.request.test_decoding import spelt
from tests.server.harness import ServerProcess
from tests.server.test_attacks import answers, read_all
from tests.wait import wait_until_async

pytestmark = pytest.mark.processes

CHAT, TEXT, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
USER = [{"role": "user", "content": "x"}]


def chat(**more: Any) -> dict[str, Any]:
    return {"messages": USER, "max_tokens": 4, **more}


def gen(**more: Any) -> dict[str, Any]:
    return {"prompt": "x", "max_tokens": 4, **more}


def decode(**more: Any) -> dict[str, Any]:
    return gen(decoding=more)


RULES = algorithms_for("multi_bd")
OTHER = max(RULES, key=lambda rule: rule.key != "threshold").key  # any but threshold
Case = tuple[str, Any, int, str | None]  # route, body (bytes are sent as they are), status, param
# Values that are refused with the name of their field, by route, other members of the body, and that name.
VALUES: list[tuple[str, dict[str, Any], dict[str, list[Any]]]] = [
    (GENERATE, gen(), {
        "prompt": ["", [], 5, [1, "2"], [1, True], [1, 2.5], ["x"], "x" * 513, "x" * 1_500_000, [64] * 512],
        "prompt[0]": [[2**70]], "prompt[1]": [[64, -1], [64, 261]],
        "max_tokens": [0, -3, 2**31 + 1, True, 1.5], "min_tokens": [-1], "temperature": [-0.1, False],
        "top_p": [-0.1, 1.01], "top_k": [-2], "min_p": [1.5], "repetition_penalty": [0], "seed": [2**64, "one"],
        "stop": [[""], ["x"] * 3 + [5], [str(i) for i in range(33)], "y" * 2000],
        "stop_token_ids[0]": [["5"]], "stop_token_ids[1]": [[5, 70_000]],
        "ignore_eos": [1], "max_nfe": [0], "max_repetition_run": [0], "cache_salt": ["s" * 300], "n": [2],
        "stream": ["yes"], "stream_mode": ["denoise"],
        "decoding": [[]], "decoding.mode": ["fast"], "decoding.algorithm": ["magic"],
        "decoding.accept_threshold": [1.5, -0.5, "0.5"], "decoding.edit_threshold": [0.5],
        "decoding.confidence_metric": ["best"], "decoding.force_single_batch": [1], "decoding.suppress_eos": ["no"],
        "decoding.block_length": [16], "decoding.max_steps_per_block": [0], "decoding.wibble": [1],
        "local_leap_radius": [2], "confidence_metric": ["best"], "block_schedule": ["uniform"], "target_length": [8],
        "block_length": [16], "num_denoising_steps": [0],
    }),
    (GENERATE, {"prompt": "x"}, {"logprobs": [True], "return_step_map": [1, "yes"],
                                 "return_step_maps": [1, [], [True, False]], "logprobs_mode": ["final", "processed"],
                                 "stream_candidates": [2, 21, -1]}),
    (TEXT, {"prompt": "x", "echo": True, "logprobs": 1}, {"logprobs_mode": ["processed"]}),
    (TEXT, {"prompt": "x", "return_step_map": True}, {"return_step_maps": [False]}),
    (CHAT, chat(), {
        "messages": [[], "hi", [{"role": "user", "content": "x" * 600}]],
        "messages[0].content": [[{"role": "user"}], [{"role": "user", "content": None}]],
        "messages[0].role": [[{"role": "cat", "content": "x"}]],
        "messages[0].tool_calls[0]": [[{"role": "user", "content": "x", "tool_calls": [1]}]],
        "n": [0, 129], "logprobs": [1], "top_logprobs": [3], "tools[0].function": [[{"type": "function"}]],
        "tool_choice": ["required"],
        "response_format": [{"type": "xml"}, {"type": "json_schema"},
                            {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}],
        "structured_outputs": [{}], "structured_outputs.yaml": [1], "structured_outputs.choice": [[]],
        "structured_outputs.json": [{"enum": []}, {"$ref": "#"}, "{"],
        "structured_outputs.regex": ["a(?=b)", "(", "(" * 9000, "a" * 70_000],
        "structured_outputs.grammar": ["start: missing"], "guided_choice": ["a"],
        "frequency_penalty": [2.5], "presence_penalty": [True],
        "logit_bias": [{"five": 1}, [5]], "logit_bias[5]": [{"5": 101}],
        "stream_options": [{"include_usage": True}], "max_completion_tokens": [9],
        "chat_template_kwargs.messages": [[]], "chat_template_kwargs.eos_token": ["x"],
    }),
    (CHAT, {"messages": USER}, {"max_completion_tokens": [0]}),
    (TEXT, {}, {"prompt": [[], [[]], ["a", 5], ["a"] * 1025]}),
    (TEXT, {"max_tokens": 4}, {"prompt": [["a"] * 577], "prompt[0]": [["a" * 3000] * 300], "prompt[1]": [["a", ""]],
                               "prompt[1][0]": [[[64], [999]]]}),
    (TEXT, {"prompt": "x"}, {"echo": [1], "max_tokens": [0], "prompt_logprobs_stride": [2], "best_of": [3],
                             "logprobs": [21, True]}),
    ("/v1/infill", {"text": "x<mask:2>"}, {"logprobs": [1], "return_step_map": [True]}),
    ("/v1/responses", {"input": "x"}, {"logprobs": [1], "return_step_map": [True], "stream_candidates": [1],
                                      "return_step_maps": [True], "logprobs_mode": ["processed"]}),
    ("/tokenize", {}, {"prompt": [5]}),
    ("/tokenize", {"prompt": "x"}, {"tools": [[{"type": "function", "function": {"name": "f"}}]]}),
    ("/detokenize", {}, {"tokens": ["x"], "tokens[0]": [[-1], [10**30]]}),
]  # fmt: skip
CASES: list[Case] = [
    *((GENERATE, body, 400, None) for body in (
        b"", b"{", b"[]", b'"x"', b"null", b"\xff\xfe{}", b'{"prompt": "\\ud800"}', b'{"prompt": ' + b"[" * 100_000,
        b'{"prompt":"x","max_tokens":' + b"9" * 5000 + b"}")),
    (GENERATE, b'{"prompt":"x","max_tokens":' + b"9" * 50 + b"}", 400, "max_tokens"),
    (GENERATE, b'{"prompt":"x","temperature":NaN}', 400, "temperature"),
    (GENERATE, b'{"prompt":"x","temperature":1e999}', 400, "temperature"),
    (GENERATE, b'{"prompt":"x","decoding":{"accept_threshold":NaN}}', 400, "decoding.accept_threshold"),
    (GENERATE, b'{"prompt":"' + b"x" * (2 * 2**20) + b'"}', 413, None),
    *((GENERATE, body, 200, None) for body in (
        gen(**{"x" * 500: 1}), gen(force_single_batch=True), gen(confidence_metric="top1_prob"),
        decode(algorithm=OTHER), decode(force_single_batch=True), decode(suppress_eos="logits"),
        decode(block_length=8))),
    (GENERATE, {}, 400, "prompt"),
    (GENERATE, gen(stream=True, stream_mode="words"), 400, "stream_mode"),
    (GENERATE, gen(model="nope"), 404, "model"),
    (CHAT, {}, 400, "messages"),
    (CHAT, chat(model="nope"), 404, "model"),
    (CHAT, chat(model=" "), 404, "model"),
    (CHAT, chat(logprobs=True, top_logprobs=21), 400, "top_logprobs"),
    (CHAT, chat(response_format={"type": "json_object"}, regex="a"), 400, "response_format"),
    *((CHAT, chat(regex="a", **more), 400, "regex") for more in (
        {"ignore_eos": True}, {"decoding": {"algorithm": "fixed"}}, {"decoding": {"remask_threshold": 0.5}})),
    (CHAT, chat(stream=True, stream_options={"wat": 1}), 200, None),
    (CHAT, chat(stream=True, stream_mode="words"), 400, "stream_mode"),
    (CHAT, chat(max_completion_tokens=0), 400, None),
    (TEXT, {}, 400, "prompt"),
    (TEXT, {"prompt": ["a"] * 1024, "n": 128, "max_tokens": 4}, 400, "prompt"),
    (TEXT, {"prompt": "a", "n": 10**9, "max_tokens": 4}, 400, "n"),
    (TEXT, b'{"prompt":["a","b"],"n":' + b"9" * 64 + b"}", 400, "n"),
    (TEXT, b'{"prompt":["a","b"],"n":' + b"9" * 4299 + b"}", 400, None),
    (TEXT, {"prompt": "x", "suffix": "y", "ignore_eos": True}, 400, "ignore_eos"),
    (TEXT, {"prompt": "x", "echo": True, "logprobs": 1, "stream": True}, 400, "echo"),
    (TEXT, {"prompt": "x", "echo": True, "suffix": "y"}, 400, "echo"),
    ("/tokenize", {}, 400, "prompt"),
    ("/tokenize", {"prompt": "x", "messages": USER}, 400, "prompt"),
    *((f"/v1/{verb}_lora_adapter", {"lora_name": "a"}, 403, None) for verb in ("load", "unload")),
    ("/v1/infill", {"prompt": "a<mask:3>b"}, 400, "text"),
    ("/start_profile", {}, 409, None),
    ("/stop_profile", {}, 409, None),
    ("/nowhere", {}, 404, None),
    ("/generate/", gen(), 404, None),
    ("/health", {}, 405, None),
]  # fmt: skip


def cases_of_values() -> Iterator[Case]:
    for route, base, refused in VALUES:
        for param, values in refused.items():
            for value in values:
                yield route, {**base, **spelt(param.partition("[")[0], value)}, 400, param


def declared_cases(rule: UnmaskingAlgorithm) -> Iterator[Case]:
    """Yields each field of an algorithm with values that it refuses, and each field that only other algorithms have."""
    names = {field.name for field in rule.fields}
    for field in rule.fields:
        past = [field.low - 1, *([] if field.high is None else [field.high + 1])]
        for value in [["x"], *([True] if field.kind != "flag" else []), *(past if not field.choices else ["x"])]:
            body = decode(algorithm=rule.key, **spelt(field.name, value))
            yield "/generate", body, 400, f"decoding.{field.name}"
        if "." in field.name:
            outer = field.name.partition(".")[0]
            yield "/generate", decode(algorithm=rule.key, **{outer: 0.9}), 400, f"decoding.{outer}"
            yield "/generate", decode(algorithm=rule.key, **{outer: {"nope": 1}}), 400, f"decoding.{outer}.nope"
    for field in {field.name: field for other in RULES for field in other.fields if field.name not in names}.values():
        value = field.choices[-1] if field.choices else max(field.low, 1)
        yield "/generate", decode(algorithm=rule.key, **spelt(field.name, value)), 400, f"decoding.{field.name}"


CASES += cases_of_values()
CASES += [case for rule in RULES for case in declared_cases(rule)]
FOREIGN = [key for key in algorithm_keys() if get_algorithm(key) not in RULES]
CASES += [("/generate", decode(algorithm=key), 400, "decoding.algorithm") for key in FOREIGN]


def is_error_object(answer: httpx.Response, param: str | None, shown: str = "") -> None:
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}, shown
    assert isinstance(error["message"], str), shown
    assert 10 < len(error["message"]) < 600, shown
    assert "Traceback" not in error["message"], shown
    if param is not None:
        assert error["param"] == param, shown
        assert param.split(".")[-1][:40] in error["message"], shown


async def send(client: httpx.AsyncClient, route: str, body: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await client.post(route, content=content, headers={"Content-Type": "application/json"})


@pytest.mark.matrix
def test_every_invalid_request_is_refused_while_200_valid_ones_run(server: ServerProcess) -> None:
    good = [{"prompt": f"good {i}", "max_tokens": 8 + i % 9, "ignore_eos": True, "seed": i} for i in range(200)]
    fast = {"accept_threshold": 0.05}

    async def answers(client: httpx.AsyncClient) -> list[tuple[int, list[int]]]:
        posts = [client.post("/generate", json={**body, "decoding": fast}) for body in good]
        return [(r.status_code, r.json()["token_ids"]) for r in await asyncio.gather(*posts)]

    async def everything() -> None:
        rounds: list[list[tuple[int, list[int]]]] = []
        finished = False

        async def keep_running(client: httpx.AsyncClient) -> None:
            while not finished:
                rounds.append(await answers(client))

        async def busy() -> bool:
            found = await asyncio.to_thread(server.metrics)
            return found["unmask_requests_running"] + found["unmask_requests_waiting"] > 0

        async with server.async_client() as client:
            alone = await answers(client)
            running = asyncio.create_task(keep_running(client))
            await wait_until_async(busy)
            for i in range(0, len(CASES), 128):
                batch = CASES[i : i + 128]
                refusals = await asyncio.gather(*(send(client, route, body) for route, body, _, _ in batch))
                for answer, (route, body, status, param) in zip(refusals, batch, strict=True):
                    shown = f"{route} {str(body)[:100]} -> {answer.status_code} {answer.text[:300]}"
                    assert answer.status_code == status, shown
                    if status != 200:
                        is_error_object(answer, param, shown)
            finished = True
            await running
        assert [status for status, _ in alone] == [200] * len(good)
        assert [len(ids) for _, ids in alone] == [body["max_tokens"] for body in good]
        assert rounds
        assert all(one == alone for one in rounds)

    asyncio.run(everything())
    server.until_idle()


def test_405_names_the_allowed_methods(server: ServerProcess) -> None:
    with server.client() as client:
        answer = client.get("/generate")
        assert answer.status_code == 405
        assert f"use {answer.headers['Allow']}" in answer.json()["error"]["message"]
        assert answer.headers["allow"] == "POST"
        assert client.get("/").status_code == 200


@pytest.mark.parametrize(
    "data",
    [
        b"NONSENSE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    ],
)
def test_broken_http_is_answered_with_an_error_object(server: ServerProcess, data: bytes) -> None:
    with server.connect(data) as connection:
        ((status, _, body),) = answers(read_all(connection))
    assert status == 400
    assert json.loads(body)["error"]["message"]


def test_the_limit_of_a_body_applies_to_chunked_bodies(server: ServerProcess) -> None:
    with server.client() as client:
        answer = client.post("/generate", content=(b"x" * 2**16 for _ in range(64)))
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"
