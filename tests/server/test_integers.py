"""Tests of integers sent as floats such as 20.0, by clients in languages without integers, in all integer fields."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.harness import ServerProcess

USER = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/generate": {"prompt": "hello", "max_tokens": 4},
    "/v1/chat/completions": {"messages": USER, "max_tokens": 4},
    "/v1/completions": {"prompt": "hello", "max_tokens": 4},
    "/v1/responses": {"input": "hello", "max_output_tokens": 4},
    "/v1/messages": {"messages": USER, "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": USER},
    "/v1/infill": {"segments": [{"text": "a"}, {"mask": 2}]},
    "/detokenize": {"tokens": [40, 41]},
}
# Further fields for those that exclude another field of the body, or need one.
MORE: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "max_completion_tokens": {"max_tokens": None},
    "num_denoising_steps": {"max_tokens": 64},
    "local_leap_radius": {"use_local_leap": True},
    "prompt_logprobs_stride": {"echo": True, "logprobs": 1},
}


@pytest.fixture(scope="module")
def server(fake: ServerProcess) -> ServerProcess:
    return fake


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> dict[str, Any]:
    return client.get("/openapi.json").json()


def kinds(schema: dict[str, Any]) -> set[str]:
    """Returns the types of values that a schema has on its first level."""
    inner = [schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())]
    found = {kind["type"] for kind in inner if isinstance(kind.get("type"), str)}
    items = [kind.get("items", {}).get("type") for kind in inner if kind.get("type") == "array"]
    return found | {f"array of {item}" for item in items if item}


def fields(document: dict[str, Any], route: str) -> dict[str, dict[str, Any]]:
    body = document["paths"][route]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    return document["components"]["schemas"][body.rpartition("/")[2]]["properties"]


@pytest.mark.parametrize("route", BODIES)
def test_every_integer_field_of_a_route_accepts_integral_floats(
    client: httpx.Client, document: dict[str, Any], route: str
) -> None:
    seen = set()
    for name, schema in fields(document, route).items():
        if not kinds(schema) & {"integer", "array of integer"} or name in ("prompt", "model"):
            continue
        (example,) = schema["examples"]
        many = isinstance(example, list)
        body = {**BODIES[route], **MORE.get(name, {})}
        floats = [float(item) for item in example] if many else float(example)
        exact = client.post(route, json={**body, name: example})
        answer = client.post(route, json={**body, name: floats})
        assert answer.status_code == exact.status_code, (name, exact.text, answer.text)
        if exact.status_code == 200:
            seen.add(name)
        broken = [item + 0.5 for item in example] if many else example + 0.5
        assert client.post(route, json={**body, name: broken}).status_code == 400, name
    assert seen or route in ("/v1/messages/count_tokens", "/v1/infill"), seen


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/infill", {"segments": [{"text": "a"}, {"mask": 2.0}]}),
        ("/v1/messages", {**BODIES["/v1/messages"], "thinking": {"type": "enabled", "budget_tokens": 1024.0}}),
        ("/v1/chat/completions", {**BODIES["/v1/chat/completions"], "n": 2.0, "seed": 1.0, "stream": True}),
        ("/v1/completions", {**BODIES["/v1/completions"], "best_of": 1.0, "logprobs": 1.0}),
        ("/v1/messages", {**BODIES["/v1/messages"], "n": 1.0, "top_logprobs": 0.0}),
        ("/generate", {**BODIES["/generate"], "decoding": {"max_steps_per_block": 8.0}}),
        ("/generate", {**BODIES["/generate"], "decoding": {"algorithm": "fixed", "steps": 4.0}}),
        ("/generate", {**BODIES["/generate"], "decoding": {"algorithm": "local_leap", "local_leap": {"radius": 4.0}}}),
        ("/generate", {**BODIES["/generate"], "decoding": {"block_length": 32.0}}),
        ("/generate", {**BODIES["/generate"], "stop_token_ids": [40, 41.0]}),
        ("/generate", {**BODIES["/generate"], "prompt": [40.0, 41.0]}),
        ("/v1/completions", {**BODIES["/v1/completions"], "prompt": [40, 41.0]}),
        ("/v1/completions", {**BODIES["/v1/completions"], "prompt": ["hello", [40.0], [41]]}),
    ],
)
def test_integers_within_other_fields_accept_integral_floats(
    demo: ServerProcess, route: str, body: dict[str, Any]
) -> None:
    with demo.client() as client:
        answer = client.post(route, json=body)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("value", [20.5, "20", True, [20], 1e300])
def test_a_value_that_is_no_integer_is_refused(client: httpx.Client, value: Any) -> None:
    refused = client.post("/generate", json={"prompt": "hello", "max_tokens": value})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "max_tokens"


def test_the_answer_does_not_depend_on_the_notation(client: httpx.Client) -> None:
    asked = {"prompt": "hello", "max_tokens": 8, "seed": 1, "temperature": 1}
    texts = [client.post("/generate", json={**asked, "max_tokens": limit}).json()["text"] for limit in (8, 8.0, 8e0)]
    assert len(set(texts)) == 1


@pytest.mark.parametrize("prompt", [[40.5], [40.0, True], [[40.0, "a"]], [40.0, [41]]])
def test_prompts_of_other_numbers_are_refused(client: httpx.Client, prompt: Any) -> None:
    refused = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 4})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "prompt"
