"""Tests that real answers and events match the OpenAPI document: every field is documented, none is missing."""

import copy
import json
from typing import Any

import httpx
import jsonschema_rs
import pytest

from tests.server.dialects import CHAT, MESSAGES, RESPONSES, call, request, say, tool
from tests.server.harness import KEY, ServerProcess, sse, sse_events

Document = dict[str, Any]
SHORT: dict[str, Any] = {"max_tokens": 9, "ignore_eos": True}
ASK = [{"role": "user", "content": "hello"}]
LOGPROBS = {"logprobs": True, "top_logprobs": 2}
STEPS = {"return_step_map": True, "return_token_ids": True}


def called(route: str, **more: Any) -> dict[str, Any]:
    """Returns a request whose answer has reasoning, text and calls."""
    text = f"<think>Hm.</think>Let me look.\n{call(city='Zürich')}\n{call('clock')}"
    return request(route, say(text), tools=[tool(route), tool(route, "clock", {"type": "object"})], **more)


CASES: list[tuple[str, str, dict[str, Any]]] = [  # server, route, body
    ("server", CHAT, {"messages": ASK, **SHORT, "n": 2}),
    ("server", CHAT, {"messages": ASK, **SHORT, **LOGPROBS, **STEPS}),
    ("scripted", CHAT, called(CHAT)),
    ("scripted", CHAT, request(CHAT, say("A word."), max_tokens=3)),
    ("server", "/v1/completions", {"prompt": ["a b", "c"], **SHORT, **STEPS}),
    ("server", "/v1/completions", {"prompt": "a b", **SHORT, "logprobs": 2}),
    ("scripted", RESPONSES, called(RESPONSES, metadata={"a": "b"})),
    ("server", RESPONSES, {"input": "hello", "max_output_tokens": 5, "ignore_eos": True}),
    ("scripted", MESSAGES, called(MESSAGES)),
    ("server", MESSAGES, {"messages": ASK, **SHORT}),
    ("server", "/generate", {"prompt": "a b", **SHORT, "logprobs": 2}),
    ("server", "/generate", {"messages": ASK, "max_tokens": 9, "return_step_maps": True}),
    ("server", "/v1/infill", {"text": "a <mask:5> b <mask:2>"}),
    ("server", "/v1/fim/completions", {"prompt": "a", "suffix": "b", **SHORT}),
    ("server", "/infill", {"input_prefix": "a", "input_suffix": "b", **SHORT, "return_tokens": True}),
]
STREAMS = [
    *CASES,
    ("server", CHAT, {"messages": ASK, **SHORT, "stream_mode": "denoise"}),
    ("server", "/v1/completions", {"prompt": "a", **SHORT, "stream_options": {"include_usage": True}}),
    ("server", "/generate", {"prompt": "a b", **SHORT, "stream_mode": "block_append"}),
    ("server", "/generate", {"prompt": "a b", **SHORT, "stream_candidates": 2}),
    ("server", CHAT, {"messages": ASK, **SHORT, "stream_mode": "denoise", "stream_candidates": 2}),
]
SMALL: list[tuple[str, str, Any, int]] = [
    ("GET", "/health", None, 200), ("GET", "/ready", None, 200), ("GET", "/startup", None, 200),
    ("GET", "/v1/models", None, 200), ("GET", "/v1/models/tiny", None, 200), ("GET", "/v1/models/other", None, 404),
    ("GET", "/tokenizer_info", None, 200), ("POST", "/tokenize", {"prompt": "a b"}, 200),
    ("POST", "/detokenize", {"tokens": [64, 65, 256], "return_bytes": True}, 200),
    ("POST", "/v1/completions", {"prompt": 1}, 400), ("POST", "/v1/messages", {"messages": 1}, 400),
    ("POST", "/v1/messages/count_tokens", {"messages": ASK}, 200), ("POST", "/start_profile", None, 409),
    ("POST", "/v1/completions", {"prompt": "a b", "max_tokens": 3, "echo": True, "logprobs": 1}, 200),
]  # fmt: skip


def closed(document: Document) -> Document:
    """Returns the document with `additionalProperties: false` in each object with properties."""
    document = copy.deepcopy(document)
    for schema in document["components"]["schemas"].values():
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return document


@pytest.fixture(scope="module")
def document(server: ServerProcess) -> Document:
    with server.client() as client:
        return closed(client.get("/openapi.json").json())


def fits(value: Any, schema: Document, document: Document) -> None:
    validator = jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]})
    wrong = [f"{'.'.join(map(str, error.instance_path))}: {error.message}" for error in validator.iter_errors(value)]
    assert not wrong, (wrong[:3], value)


def content(document: Document, method: str, path: str, status: int) -> Document:
    path = "/v1/models/{name}" if path.startswith("/v1/models/") else path
    found: Document = document["paths"][path][method.lower()]["responses"][str(status)]["content"]
    return found


@pytest.mark.parametrize(("where", "path", "body"), CASES)
def test_an_answer_matches_the_document(
    request: pytest.FixtureRequest, document: Document, where: str, path: str, body: Any
) -> None:
    with request.getfixturevalue(where).client() as client:
        answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    fits(answer.json(), content(document, "post", path, 200)["application/json"]["schema"], document)


@pytest.mark.parametrize(("where", "path", "body"), STREAMS)
def test_each_event_of_a_stream_matches_the_document(
    request: pytest.FixtureRequest, document: Document, where: str, path: str, body: Any
) -> None:
    with request.getfixturevalue(where).client() as client:
        answer = client.post(path, json={**body, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    declared = content(document, "post", path, 200)["text/event-stream"]
    schema = declared["itemSchema"]["properties"]["data"]["contentSchema"]
    if path in ("/v1/responses", "/v1/messages"):
        events = [data for _, data in sse_events(answer.text)]
    elif path == "/infill":
        events = [json.loads(line) for line in sse(answer.text)]
    else:
        *lines, last = sse(answer.text)
        assert last == "[DONE]"
        assert "[DONE]" in declared["schema"]["description"]
        events = [json.loads(line) for line in lines]
    assert len(events) > 1
    for event in events:
        fits(event, schema, document)


@pytest.mark.parametrize(("method", "path", "body", "status"), SMALL)
def test_answers_of_other_routes_match_the_document(
    client: httpx.Client, document: Document, method: str, path: str, body: Any, status: int
) -> None:
    answer = client.request(method, path, json=body)
    assert answer.status_code == status, answer.text
    fits(answer.json(), content(document, method, path, status)["application/json"]["schema"], document)


@pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT, {"messages": ASK}), (RESPONSES, {"input": "a"}), (MESSAGES, {"messages": ASK}),
     ("/generate", {"prompt": "a"})],
)  # fmt: skip
def test_a_stream_that_fails_ends_as_documented(document: Document, fake: ServerProcess, path: str, body: Any) -> None:
    with fake.client() as client:
        text = client.post(path, json={**body, "max_tokens": 4, "cache_salt": "fail", "stream": True}).text
    declared = content(document, "post", path, 200)["text/event-stream"]
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    last = json.loads(data[-1] if data[-1] != "[DONE]" else data[-2])
    assert "bad step" in json.dumps(last)
    fits(last, declared["itemSchema"]["properties"]["data"]["contentSchema"], document)


def test_every_field_is_described_and_those_of_requests_have_valid_examples(document: Document) -> None:
    schemas = document["components"]["schemas"]
    asked: set[str] = set()
    found = {ref.rpartition("/")[2] for o in _operations(document) for ref in _refs(o.get("requestBody"))}
    while found - asked:
        asked |= found
        found = {ref.rpartition("/")[2] for name in asked for ref in _refs(schemas[name])}
    missing = []
    for name, schema in schemas.items():
        for field, what in schema.get("properties", {}).items():
            if not what.get("description"):
                missing.append(f"{name}.{field}: a description")
            if name not in asked or name == "Decoding":
                continue
            if not what.get("examples"):
                missing.append(f"{name}.{field}: an example")
            for example in what.get("examples", ()):
                fits(example, {key: value for key, value in what.items() if key != "examples"}, document)
    assert not missing
    assert asked > {"ChatRequest", "Message", "Block", "Item", "Segment"}


def test_the_document_refers_to_all_of_its_schemas(document: Document) -> None:
    schemas = set(document["components"]["schemas"])
    assert {ref.rpartition("/")[2] for ref in _refs(document)} == schemas
    assert all("422" not in operation["responses"] for operation in _operations(document))


def test_every_route_documents_the_refusal_of_other_origins(document: Document) -> None:
    assert [operation["summary"] for operation in _operations(document) if "403" not in operation["responses"]] == []


def test_documented_security_matches_the_routes_that_need_a_key(document: Document, keyed: ServerProcess) -> None:
    assert "securitySchemes" not in document["components"]
    assert "security" not in document
    bearer = {"Authorization": f"Bearer {KEY}"}
    with keyed.client() as client:
        described = client.get("/openapi.json", headers=bearer).json()
        for path, methods in described["paths"].items():
            if "get" in methods and path != "/v1/models/{name}":
                security = methods["get"].get("security", described["security"])
                assert (client.get(path).status_code == 401) == bool(security), path
        for (name,) in described["security"]:
            scheme = described["components"]["securitySchemes"][name]
            key = {scheme["name"]: KEY} if scheme["type"] == "apiKey" else bearer
            assert client.get("/v1/models", headers=key).status_code == 200


def _operations(document: Document) -> list[Document]:
    return [operation for methods in document["paths"].values() for operation in methods.values()]


def _refs(value: Any) -> set[str]:
    if isinstance(value, list):
        return {ref for item in value for ref in _refs(item)}
    if not isinstance(value, dict):
        return set()
    own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
    return own | {ref for item in value.values() for ref in _refs(item)}
