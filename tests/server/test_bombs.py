"""Tests of requests that are made to block the server: it answers others all the time and uses little memory.

The bound is an order of magnitude above what an idle machine takes, and one below what these requests once took.
The tests check that other requests are answered meanwhile. `make siege` measures how soon, for its own attacks.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from runtime.server.serving.preprocessor import MAX_ARGUMENTS
from runtime.server.serving.request_body import MAX_BODY
from runtime.tokenizer.template_sandbox import MAX_CHARS, MAX_FACTOR
from tests.server.bombs import LARGEST, SHAPES
from tests.server.checkpoint import TEMPLATE
from tests.server.harness import FAKE, ServerProcess, serving
from tests.server.pings import Peak, pinging
from tests.tokenizer.panicking import PANICS

GROWN = 150.0  # MB: 100, and the error of a sampled peak
CHAT = "/v1/chat/completions"
ABORTED = 'unmask_requests_total{outcome="aborted"}'
USER = [{"role": "user", "content": "x"}]
SPIN = 5_000  # the square of it is a number of iterations that takes more than two seconds
PRINTS = (
    TEMPLATE + "{% if documents %}{{ documents | tojson }}{% endif %}"
    "{% if spin %}{% for a in range(spin) %}{% for b in range(spin) %}{% endfor %}{% endfor %}{% endif %}"
    "{% if grow %}{{ 'x' * grow }}{% endif %}"
    "{% if write %}{% for a in range(write) %}{{ messages[0]['content'] }}{% endfor %}{% endif %}"
)


@pytest.fixture(scope="module")
def target(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Yields a server with a length at which 2 MiB of text may be a prompt; its template writes its arguments."""
    template = tmp_path_factory.mktemp("template") / "prints.jinja"
    template.write_text(PRINTS)
    flags = ("--model", str(checkpoint), "--max-model-len", "65536", "--chat-template", str(template))
    with serving(*flags, module=FAKE) as server:
        with server.client() as client:
            assert client.post(CHAT, json={"messages": USER, "max_tokens": 1}).status_code == 200
        yield server


def post(server: ServerProcess, route: str, body: Any) -> httpx.Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with server.client() as client:
        return client.post(route, content=data, headers={"Content-Type": "application/json"})


def test_a_body_of_a_costly_shape_is_refused(target: ServerProcess) -> None:
    answer = post(target, *SHAPES["parts {}"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "body_too_complex")


def test_twelve_costly_bodies_at_once_take_little_memory(target: ServerProcess) -> None:
    bodies = [SHAPES["parts {}"], *LARGEST.values()][:12]
    peak = Peak(target.process.pid)
    with pinging(target), ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda body: post(target, *body), bodies))
    assert all(answer.status_code in (200, 400) for answer in answers)
    assert peak.grown < GROWN


TEXT = "ab cd " * (MAX_BODY // 12)


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/tokenize", lambda text: {"prompt": text}),
        ("/generate", lambda text: {"prompt": text, "max_tokens": 1}),
        ("/v1/completions", lambda text: {"prompt": [text[:500_000], text[500_000:]], "max_tokens": 1}),
        (CHAT, lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 1}),
        (CHAT, lambda text: {"messages": USER, "chat_template_kwargs": {"documents": [text]}, "max_tokens": 1}),
    ],
)
def test_a_prompt_of_a_million_characters_takes_no_memory(target: ServerProcess, route: str, body: Any) -> None:
    peak = Peak(target.process.pid)
    with pinging(target):
        answer = post(target, route, body(TEXT))
    assert peak.grown < GROWN
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    "value",
    [[0] * MAX_ARGUMENTS, [[[]] * (MAX_ARGUMENTS // 2)] * 2, [{"a": "b"}] * MAX_ARGUMENTS],
    ids=["flat", "nested", "objects"],
)
def test_the_number_of_values_in_template_arguments_is_limited(target: ServerProcess, value: Any) -> None:
    """Values wait in the queue as Python objects, each ten times as large as in the body."""
    body = {"messages": USER, "chat_template_kwargs": {"a": value}, "max_tokens": 1}
    answer = post(target, CHAT, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "chat_template_kwargs"
    assert str(MAX_ARGUMENTS) in answer.json()["error"]["message"]
    body["chat_template_kwargs"] = {"a": [0] * (MAX_ARGUMENTS - 2)}  # the list and the arguments count as two
    assert post(target, CHAT, body).status_code == 200


def test_a_long_text_is_encoded_right_while_others_are_answered(target: ServerProcess) -> None:
    text = "ab cd " * 20_000
    with ThreadPoolExecutor(1) as pool:
        big = pool.submit(post, target, "/tokenize", {"prompt": text})
        assert post(target, "/generate", {"prompt": "hello", "max_tokens": 1}).status_code == 200
        assert post(target, "/detokenize", {"tokens": big.result().json()["tokens"]}).json()["prompt"] == text


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"spin": SPIN}, "takes more than"),
        ({"grow": MAX_FACTOR + 1}, "repeated more than"),
        ({"write": 2 * MAX_CHARS // 1000}, "writes more than"),
    ],
)
def test_a_template_that_exceeds_its_limits_is_stopped(
    target: ServerProcess, kwargs: dict[str, int], says: str
) -> None:
    body = {"messages": [{"role": "user", "content": "x" * 1000}], "chat_template_kwargs": kwargs, "max_tokens": 1}
    peak = Peak(target.process.pid)
    with pinging(target):
        answer = post(target, CHAT, body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "messages"
    assert peak.grown < GROWN


def test_many_ids_are_converted_to_text_or_refused(target: ServerProcess) -> None:
    with pinging(target):
        few, many = (post(target, "/detokenize", {"tokens": [64] * count}) for count in (131_000, 200_000))
    assert few.json()["prompt"] == "a" * 131_000
    assert many.status_code == 400


def test_a_client_that_disconnects_during_rendering_counts_as_aborted(target: ServerProcess) -> None:
    """`tests/server/test_executors.py` and `tests/tokenizer/test_template_limits.py` check that the rendering ends."""
    body = json.dumps({"messages": USER, "chat_template_kwargs": {"spin": SPIN}}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    before = target.metrics().get(ABORTED, 0)
    for _ in range(4):
        with target.connect(head + body), target.client() as client:
            assert client.get("/health").status_code == 200  # on a later connection: the loop has read the request
    answer = post(target, "/tokenize", {"messages": USER, "chat_template_kwargs": {"write": 1}})
    assert answer.status_code == 200
    target.until_metric(ABORTED, before + 4)


def test_a_panic_of_the_tokenizers_library_is_an_error_with_an_id(checkpoint: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "panics.py"
    plugin.write_text("from tests.tokenizer import panicking as p\np.tokenizer._load = p.load")
    with serving("--model", str(checkpoint), "--plugin", str(plugin), module=FAKE) as server:
        for text in (PANICS, PANICS * 1000):  # encoded on the event loop, and in a thread
            answer = post(server, "/tokenize", {"prompt": text})
            assert answer.status_code == 500
            assert answer.headers["x-request-id"] in answer.json()["error"]["message"]
        assert post(server, "/tokenize", {"prompt": "b"}).status_code == 200
