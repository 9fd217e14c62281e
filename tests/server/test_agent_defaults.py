"""Tests of defaults of agents: token limits beyond the model's length, and a system prompt whose first line varies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.harness import FAKE, ServerProcess, serving

USER = [{"role": "user", "content": "hello"}]
# Each route, the name of its token limit, and a body.
ROUTES: list[tuple[str, str, dict[str, Any]]] = [
    ("/v1/chat/completions", "max_tokens", {"messages": USER}),
    ("/v1/chat/completions", "max_completion_tokens", {"messages": USER}),
    ("/v1/completions", "max_tokens", {"prompt": "hello"}),
    ("/v1/completions", "max_tokens", {"prompt": "hello", "suffix": "more"}),
    ("/v1/completions", "max_tokens", {"prompt": ["hello", "there"]}),
    ("/v1/responses", "max_output_tokens", {"input": "hello"}),
    ("/v1/messages", "max_tokens", {"messages": USER}),
    ("/generate", "max_tokens", {"prompt": "hello"}),
    ("/generate", "max_tokens", {"messages": USER}),
]


LENGTH = 128  # of prompt and answer together, small so that answers up to the limit are short


@pytest.fixture(scope="module")
def server(checkpoint: Path) -> Iterator[ServerProcess]:
    with serving("--model", str(checkpoint), "--max-model-len", str(LENGTH), module=FAKE) as server:
        yield server


def cached(client: httpx.Client, body: dict[str, Any]) -> int:
    answer = client.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["cache_read_input_tokens"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("route", "name", "body"), ROUTES)
def test_a_limit_beyond_the_models_length_is_lowered(
    client: httpx.Client, route: str, name: str, body: dict[str, Any], stream: bool
) -> None:
    taken = client.post(route, json={**body, name: 32000, "stream": stream})
    assert taken.status_code == 200, taken.text
    assert taken.headers["x-unmask-ignored"] == name
    taken = client.post(route, json={**body, name: LENGTH, "stream": stream})
    assert taken.status_code == 200, taken.text
    assert "x-unmask-ignored" not in taken.headers


def test_strict_fields_refuse_such_a_limit(checkpoint: Path) -> None:
    flags = ("--model", str(checkpoint), "--strict-fields")
    with serving(*flags, module=FAKE) as server, server.client() as client:
        for route, name, body in ROUTES:
            refused = client.post(route, json={**body, name: 32000})
            assert refused.status_code == 400
            assert refused.json()["error"]["message"].startswith(f"{name}: 32000 exceeds max_model_len")


@pytest.mark.parametrize("limit", [0, -1, 2**31 + 1])
def test_an_invalid_limit_is_refused(client: httpx.Client, limit: int) -> None:
    for route, name, body in ROUTES:
        assert client.post(route, json={**body, name: limit}).status_code == 400


def billing(number: int) -> str:
    return f"x-anthropic-billing-header: cc_version=2.1.{number}; cc_entrypoint=cli; cch={number:05x};"


SYSTEM = "You answer questions about arithmetic, briefly and without any further words. " * 8


@pytest.mark.matrix
@pytest.mark.parametrize(
    "system",
    [
        lambda number: [{"type": "text", "text": billing(number)}, {"type": "text", "text": SYSTEM}],
        lambda number: [{"type": "text", "text": f"{billing(number)}\n"}, {"type": "text", "text": SYSTEM}],
        lambda number: f"{billing(number)}\n{SYSTEM}",
        lambda number: [{"type": "text", "text": f"\n{billing(number)}\n\n{SYSTEM}"}],
    ],
    ids=["block", "block and newline", "text", "one block"],
)
def test_a_billing_line_does_not_defeat_the_prefix_cache(demo: ServerProcess, system: Any, request: Any) -> None:
    with demo.client() as client:
        body = {"messages": USER, "max_tokens": 4}
        alone = client.post("/v1/messages/count_tokens", json={**body, "system": SYSTEM}).json()["input_tokens"]
        marked = {**body, "system": system(1)}
        del marked["max_tokens"]
        assert client.post("/v1/messages/count_tokens", json=marked).json()["input_tokens"] == alone
        cached(client, {**body, "system": system(1)})
        assert cached(client, {**body, "system": system(2)}) > alone // 2


def test_a_billing_line_that_is_not_the_first_line_stays(client: httpx.Client) -> None:
    def tokens(**body: Any) -> int:
        return int(client.post("/v1/messages/count_tokens", json={"messages": USER, **body}).json()["input_tokens"])

    assert tokens(system=f"About: {billing(1)}") == tokens(system="About: ") + len(billing(1))
    assert tokens(messages=[{"role": "user", "content": billing(1)}]) > tokens()
