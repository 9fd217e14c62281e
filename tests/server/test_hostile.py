"""Tests of invalid input: each request gets its status and the name of the field, and 200 others are unaffected."""

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from runtime.algorithms.base import UnmaskingAlgorithm, algorithm_keys, algorithms_for, get_algorithm
from tests.server.harness import ServerProcess
from tests.wait import TIMEOUT, wait_until_async

pytestmark = pytest.mark.processes

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
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
CASES: list[Case] = [
    ("/generate", b"", 400, None),
    ("/generate", b"{", 400, None),
    ("/generate", b"[]", 400, None),
    ("/generate", b'"x"', 400, None),
    ("/generate", b"null", 400, None),
    ("/generate", b"\xff\xfe{}", 400, None),
    ("/generate", b'{"prompt": "\\ud800"}', 400, None),
    ("/generate", b'{"prompt": ' + b"[" * 100_000, 400, None),
    ("/generate", b'{"prompt":"x","max_tokens":' + b"9" * 5000 + b"}", 400, None),
    ("/generate", b'{"prompt":"x","max_tokens":' + b"9" * 50 + b"}", 400, "max_tokens"),
    ("/generate", b'{"prompt":"x","temperature":NaN}', 400, "temperature"),
    ("/generate", b'{"prompt":"x","temperature":1e999}', 400, "temperature"),
    ("/generate", b'{"prompt":"x","decoding":{"accept_threshold":NaN}}', 400, "decoding.accept_threshold"),
    ("/generate", {}, 400, "prompt"),
    ("/generate", gen(prompt=""), 400, "prompt"),
    ("/generate", gen(prompt=[]), 400, "prompt"),
    ("/generate", gen(prompt=5), 400, "prompt"),
    ("/generate", gen(prompt=[1, "2"]), 400, "prompt"),
    ("/generate", gen(prompt=[1, True]), 400, "prompt"),
    ("/generate", gen(prompt=[1, 2.5]), 400, "prompt"),
    ("/generate", gen(prompt=["x"]), 400, "prompt"),
    ("/generate", gen(prompt=[64, -1]), 400, "prompt[1]"),
    ("/generate", gen(prompt=[64, 261]), 400, "prompt[1]"),
    ("/generate", gen(prompt=[2**70]), 400, "prompt[0]"),
    ("/generate", gen(prompt="x" * 513), 400, "prompt"),
    ("/generate", gen(prompt="x" * 1_500_000), 400, "prompt"),
    ("/generate", gen(prompt=[64] * 512), 400, "prompt"),
    ("/generate", gen(max_tokens=0), 400, "max_tokens"),
    ("/generate", gen(max_tokens=-3), 400, "max_tokens"),
    ("/generate", gen(max_tokens=2**31 + 1), 400, "max_tokens"),
    ("/generate", gen(max_tokens=True), 400, "max_tokens"),
    ("/generate", gen(max_tokens=1.5), 400, "max_tokens"),
    ("/generate", gen(temperature=-0.1), 400, "temperature"),
    ("/generate", gen(temperature=False), 400, "temperature"),
    ("/generate", gen(top_p=-0.1), 400, "top_p"),
    ("/generate", gen(top_p=1.01), 400, "top_p"),
    ("/generate", gen(top_k=-2), 400, "top_k"),
    ("/generate", gen(seed=2**64), 400, "seed"),
    ("/generate", gen(seed="one"), 400, "seed"),
    ("/generate", gen(stop=[""]), 400, "stop"),
    ("/generate", gen(stop=["x"] * 3 + [5]), 400, "stop"),
    ("/generate", gen(stop=[str(i) for i in range(33)]), 400, "stop"),
    ("/generate", gen(stop="y" * 2000), 400, "stop"),
    ("/generate", gen(ignore_eos=1), 400, "ignore_eos"),
    ("/generate", gen(max_nfe=0), 400, "max_nfe"),
    ("/generate", gen(max_repetition_run=0), 400, "max_repetition_run"),
    ("/generate", gen(cache_salt="s" * 300), 400, "cache_salt"),
    ("/generate", gen(stream="yes"), 400, "stream"),
    ("/generate", gen(stream_mode="denoise"), 400, "stream_mode"),
    ("/generate", gen(stream=True, stream_mode="words"), 400, "stream_mode"),
    ("/generate", gen(n=2), 400, "n"),
    ("/generate", gen(model="nope"), 404, "model"),
    ("/generate", gen(**{"x" * 500: 1}), 200, None),
    ("/generate", gen(stop_token_ids=[5, 70_000]), 400, "stop_token_ids[1]"),
    ("/generate", gen(min_tokens=-1), 400, "min_tokens"),
    ("/generate", gen(stop_token_ids=["5"]), 400, "stop_token_ids[0]"),
    ("/generate", gen(min_p=1.5), 400, "min_p"),
    ("/generate", gen(repetition_penalty=0), 400, "repetition_penalty"),
    ("/generate", gen(decoding=[]), 400, "decoding"),
    ("/generate", decode(mode="fast"), 400, "decoding.mode"),
    ("/generate", decode(algorithm="magic"), 400, "decoding.algorithm"),
    ("/generate", decode(algorithm=OTHER), 200, None),
    ("/generate", decode(accept_threshold=1.5), 400, "decoding.accept_threshold"),
    ("/generate", decode(accept_threshold=-0.5), 400, "decoding.accept_threshold"),
    ("/generate", decode(accept_threshold="0.5"), 400, "decoding.accept_threshold"),
    ("/generate", decode(edit_threshold=0.5), 400, "decoding.edit_threshold"),
    ("/generate", decode(confidence_metric="best"), 400, "decoding.confidence_metric"),
    ("/generate", decode(force_single_batch=True), 200, None),
    ("/generate", decode(force_single_batch=1), 400, "decoding.force_single_batch"),
    ("/generate", gen(force_single_batch=True), 200, None),
    ("/generate", decode(suppress_eos="logits"), 200, None),
    ("/generate", decode(suppress_eos="no"), 400, "decoding.suppress_eos"),
    ("/generate", decode(block_length=16), 400, "decoding.block_length"),
    ("/generate", decode(block_length=8), 200, None),
    ("/generate", decode(max_steps_per_block=0), 400, "decoding.max_steps_per_block"),
    ("/generate", decode(wibble=1), 400, "decoding.wibble"),
    ("/generate", gen(local_leap_radius=2), 400, "local_leap_radius"),
    ("/generate", gen(confidence_metric="top1_prob"), 200, None),
    ("/generate", gen(confidence_metric="best"), 400, "confidence_metric"),
    ("/generate", gen(block_schedule="uniform"), 400, "block_schedule"),
    ("/generate", gen(target_length=8), 400, "target_length"),
    ("/generate", gen(block_length=16), 400, "block_length"),
    ("/generate", gen(num_denoising_steps=0), 400, "num_denoising_steps"),
    (CHAT, {}, 400, "messages"),
    (CHAT, chat(messages=[]), 400, "messages"),
    (CHAT, chat(messages="hi"), 400, "messages"),
    (CHAT, chat(messages=[{"role": "user"}]), 400, "messages[0].content"),
    (CHAT, chat(messages=[{"role": "user", "content": None}]), 400, "messages[0].content"),
    (CHAT, chat(messages=[{"role": "cat", "content": "x"}]), 400, "messages[0].role"),
    (CHAT, chat(messages=[{"role": "user", "content": "x", "tool_calls": [1]}]), 400, "messages[0].tool_calls[0]"),
    (CHAT, chat(messages=[{"role": "user", "content": "x" * 600}]), 400, "messages"),
    (CHAT, chat(model="nope"), 404, "model"),
    (CHAT, chat(model=" "), 404, "model"),
    (CHAT, chat(n=0), 400, "n"),
    (CHAT, chat(n=129), 400, "n"),
    (CHAT, chat(logprobs=1), 400, "logprobs"),
    (CHAT, chat(logprobs=True, top_logprobs=21), 400, "top_logprobs"),
    (CHAT, chat(top_logprobs=3), 400, "top_logprobs"),
    (CHAT, chat(tools=[{"type": "function"}]), 400, "tools[0].function"),
    (CHAT, chat(tool_choice="required"), 400, "tool_choice"),
    (CHAT, chat(response_format={"type": "xml"}), 400, "response_format"),
    (CHAT, chat(response_format={"type": "json_schema"}), 400, "response_format"),
    (CHAT, chat(response_format={"type": "json_object"}, regex="a"), 400, "response_format"),
    (
        CHAT,
        chat(response_format={"type": "json_schema", "json_schema": {"schema": {"not": {}}}}),
        400,
        "response_format",
    ),
    (CHAT, chat(structured_outputs={"json": {"enum": []}}), 400, "structured_outputs.json"),
    (CHAT, chat(structured_outputs={"json": {"$ref": "#"}}), 400, "structured_outputs.json"),
    (CHAT, chat(structured_outputs={"json": "{"}), 400, "structured_outputs.json"),
    (CHAT, chat(structured_outputs={"yaml": 1}), 400, "structured_outputs.yaml"),
    (CHAT, chat(structured_outputs={}), 400, "structured_outputs"),
    (CHAT, chat(structured_outputs={"regex": "a(?=b)"}), 400, "structured_outputs.regex"),
    (CHAT, chat(structured_outputs={"regex": "("}), 400, "structured_outputs.regex"),
    (CHAT, chat(structured_outputs={"regex": "(" * 9000}), 400, "structured_outputs.regex"),
    (CHAT, chat(structured_outputs={"choice": []}), 400, "structured_outputs.choice"),
    (CHAT, chat(structured_outputs={"grammar": "start: missing"}), 400, "structured_outputs.grammar"),
    (CHAT, chat(structured_outputs={"regex": "a" * 70_000}), 400, "structured_outputs.regex"),
    (CHAT, chat(guided_choice="a"), 400, "guided_choice"),
    (CHAT, chat(regex="a", ignore_eos=True), 400, "regex"),
    (CHAT, chat(regex="a", decoding={"algorithm": "fixed"}), 400, "regex"),
    (CHAT, chat(regex="a", decoding={"remask_threshold": 0.5}), 400, "regex"),
    (CHAT, chat(frequency_penalty=2.5), 400, "frequency_penalty"),
    (CHAT, chat(presence_penalty=True), 400, "presence_penalty"),
    (CHAT, chat(logit_bias={"5": 101}), 400, "logit_bias[5]"),
    (CHAT, chat(logit_bias={"five": 1}), 400, "logit_bias"),
    (CHAT, chat(logit_bias=[5]), 400, "logit_bias"),
    (CHAT, chat(stream_options={"include_usage": True}), 400, "stream_options"),
    (CHAT, chat(stream=True, stream_options={"wat": 1}), 200, None),
    (CHAT, chat(stream=True, stream_mode="words"), 400, "stream_mode"),
    (CHAT, chat(max_completion_tokens=0), 400, None),
    (CHAT, chat(max_completion_tokens=9), 400, "max_completion_tokens"),
    (CHAT, {"messages": USER, "max_completion_tokens": 0}, 400, "max_completion_tokens"),
    (CHAT, chat(chat_template_kwargs={"messages": []}), 400, "chat_template_kwargs.messages"),
    (CHAT, chat(chat_template_kwargs={"eos_token": "x"}), 400, "chat_template_kwargs.eos_token"),
    (TEXT, {}, 400, "prompt"),
    (TEXT, {"prompt": []}, 400, "prompt"),
    (TEXT, {"prompt": [[]]}, 400, "prompt"),
    (TEXT, {"prompt": ["a", ""], "max_tokens": 4}, 400, "prompt[1]"),
    (TEXT, {"prompt": [[64], [999]], "max_tokens": 4}, 400, "prompt[1][0]"),
    (TEXT, {"prompt": ["a", 5]}, 400, "prompt"),
    (TEXT, {"prompt": ["a"] * 1025}, 400, "prompt"),
    (TEXT, {"prompt": ["a"] * 1024, "n": 128, "max_tokens": 4}, 400, "prompt"),
    (TEXT, {"prompt": ["a"] * 577, "max_tokens": 4}, 400, "prompt"),
    (TEXT, {"prompt": "a", "n": 10**9, "max_tokens": 4}, 400, "n"),
    (TEXT, b'{"prompt":["a","b"],"n":' + b"9" * 64 + b"}", 400, "n"),
    (TEXT, b'{"prompt":["a","b"],"n":' + b"9" * 4299 + b"}", 400, None),
    (TEXT, {"prompt": ["a" * 3000] * 300, "max_tokens": 4}, 400, "prompt[0]"),
    (TEXT, {"prompt": "x", "suffix": "y", "ignore_eos": True}, 400, "ignore_eos"),
    (TEXT, {"prompt": "x", "echo": 1}, 400, "echo"),
    (TEXT, {"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
    (TEXT, {"prompt": "x", "prompt_logprobs_stride": 2}, 400, "prompt_logprobs_stride"),
    (TEXT, {"prompt": "x", "echo": True, "logprobs": 1, "stream": True}, 400, "echo"),
    (TEXT, {"prompt": "x", "echo": True, "suffix": "y"}, 400, "echo"),
    (TEXT, {"prompt": "x", "best_of": 3}, 400, "best_of"),
    (TEXT, {"prompt": "x", "logprobs": 21}, 400, "logprobs"),
    (TEXT, {"prompt": "x", "logprobs": True}, 400, "logprobs"),
    ("/generate", {"prompt": "x", "logprobs": True}, 400, "logprobs"),
    ("/v1/infill", {"text": "x<mask:2>", "logprobs": 1}, 400, "logprobs"),
    ("/v1/responses", {"input": "x", "logprobs": 1}, 400, "logprobs"),
    ("/tokenize", {}, 400, "prompt"),
    ("/tokenize", {"prompt": "x", "messages": USER}, 400, "prompt"),
    ("/tokenize", {"prompt": 5}, 400, "prompt"),
    ("/tokenize", {"prompt": "x", "tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tools"),
    ("/detokenize", {"tokens": [-1]}, 400, "tokens[0]"),
    ("/detokenize", {"tokens": [10**30]}, 400, "tokens[0]"),
    ("/detokenize", {"tokens": "x"}, 400, "tokens"),
    ("/v1/load_lora_adapter", {"lora_name": "a"}, 403, None),
    ("/v1/unload_lora_adapter", {"lora_name": "a"}, 403, None),
    ("/v1/infill", {"prompt": "a<mask:3>b"}, 400, "text"),
    ("/start_profile", {}, 409, None),
    ("/stop_profile", {}, 409, None),
    ("/nowhere", {}, 404, None),
    ("/generate/", gen(), 404, None),
    ("/health", {}, 405, None),
    ("/generate", b'{"prompt":"' + b"x" * (2 * 2**20) + b'"}', 413, None),
]


def spelt(name: str, value: object) -> dict[str, Any]:
    """Returns a field as in the JSON of a request, where a dotted name is nested."""
    outer, _, inner = name.rpartition(".")
    return {outer: {inner: value}} if outer else {name: value}


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


@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text"}, "x", {"type": "text", "text": 5}]
)
def test_content_parts_of_other_kinds_are_refused(server: ServerProcess, part: Any) -> None:
    with server.client() as client:
        answer = client.post(CHAT, json=chat(messages=[{"role": "user", "content": [part]}]))
    assert answer.status_code == 400
    is_error_object(answer, None)
    assert answer.json()["error"]["param"].startswith("messages[0].content")


def test_405_names_the_allowed_methods(server: ServerProcess) -> None:
    with server.client() as client:
        answer = client.get("/generate")
        assert answer.status_code == 405
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
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT) as connection:
        connection.sendall(data)
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
    assert b" 400 " in answer.split(b"\r\n")[0]
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["message"]


def test_a_wrong_content_length_affects_no_other_request(server: ServerProcess) -> None:
    head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT) as connection:
        connection.sendall(head + b'{"prompt":')
    with server.client() as client:
        assert client.post("/generate", json=gen()).status_code == 200


@pytest.fixture
def chunks() -> Iterator[bytes]:
    return (b"x" * 2**16 for _ in range(64))


def test_the_limit_of_a_body_applies_to_chunked_bodies(server: ServerProcess, chunks: Iterator[bytes]) -> None:
    with server.client() as client:
        answer = client.post("/generate", content=chunks)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"
