"""What clients send beyond the API: fields without effect or unknown, integers as floats, limits beyond the model."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from runtime.tokenizer import Tokenizer
from tests.server.dialects import CHAT, MESSAGES, RESPONSES, ROUTES, read, request, tool
from tests.server.harness import FAKE, ServerProcess, serving, sse

TEXT, GENERATE = "/v1/completions", "/generate"
USER = {"role": "user", "content": "hello"}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
BODIES: dict[str, dict[str, Any]] = {
    GENERATE: {"prompt": "hello", "max_tokens": 4},
    TEXT: {"prompt": "hello", "max_tokens": 4},
    **{route: request(route, "hello", max_tokens=4) for route in ROUTES},
    "/v1/messages/count_tokens": {"messages": [USER]},
    "/v1/infill": {"segments": [{"text": "a"}, {"mask": 2}]},
    "/v1/fim/completions": {"prompt": "a", "suffix": "b", "max_tokens": 4},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 4},
    "/detokenize": {"tokens": [40, 41]},
}


def test_a_message_of_the_sdk_is_accepted_as_history(ai: openai.OpenAI) -> None:
    body: Any = request(CHAT, "hello", max_tokens=8)
    first = ai.chat.completions.create(**body).choices[0].message
    for dumped in (first.model_dump(), first, {**first.model_dump(), "annotations": [{"type": "url_citation"}]}):
        assert ai.chat.completions.create(**{**body, "messages": [USER, dumped, USER]}).choices[0].finish_reason


def test_calls_are_not_lost_with_a_template_without_tools(client: httpx.Client, checkpoint: Path) -> None:
    result = {"role": "tool", "tool_call_id": "c1", "content": "2"}
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, result]
    ids = client.post("/tokenize", json={"messages": messages}).json()["tokens"]
    text = Tokenizer(checkpoint).decode(ids)
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>' in text
    assert "<role>user</role><tool_response>\n2\n</tool_response>" in text


NEUTRAL: dict[str, dict[str, Any]] = {
    CHAT: {"min_p": 0, "skip_special_tokens": True, "echo": False, "safety_identifier": "me", "prompt_cache_key": "k",
           "reasoning_effort": "low", "frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1.0,
           "min_tokens": 0, "logit_bias": {}, "logprobs": False, "top_logprobs": None, "n": 1, "user": "me",
           "tools": [tool(CHAT)], "tool_choice": "none", "parallel_tool_calls": True, "verbosity": "medium",
           "functions": None, "prediction": {"type": "content", "content": "x"}, "use_beam_search": False,
           "length_penalty": 1.0, "response_format": {"type": "text"}, "metadata": {"a": "b"}, "store": False,
           "service_tier": "auto", "stop_token_ids": [], "modalities": ["text"], "max_completion_tokens": 4},
    TEXT: {"echo": False, "best_of": 1, "suffix": "", "logprobs": None},
    RESPONSES: {
        "store": True, "truncation": "disabled", "background": False, "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low", "summary": "auto"}, "user": "me", "prompt_cache_key": "k", "top_logprobs": 0,
        "tools": [tool(RESPONSES)], "tool_choice": "none", "parallel_tool_calls": True, "service_tier": "auto",
        "text": {"format": {"type": "text"}, "verbosity": "medium"}, "previous_response_id": None,
        "response_format": None, "stream_mode": None,
    },
    MESSAGES: {"service_tier": "auto", "thinking": {"type": "disabled"}, "output_config": {"effort": "low"},
               "tools": [tool(MESSAGES)], "tool_choice": {"type": "none"}, "mcp_servers": [],
               "cache_control": {"type": "ephemeral"}},
}  # fmt: skip


@pytest.mark.parametrize("route", NEUTRAL)
def test_fields_without_effect_are_accepted(client: httpx.Client, route: str) -> None:
    plain, taken = (client.post(route, json={**BODIES[route], **more}) for more in ({}, NEUTRAL[route]))
    assert taken.status_code == 200, taken.text
    assert "x-unmask-ignored" not in taken.headers
    if route == TEXT:
        assert taken.json()["choices"] == plain.json()["choices"]
    else:
        assert read(route, taken.text, stream=False) == read(route, plain.text, stream=False)
    assert taken.json().get("store") is (False if route == RESPONSES else None)


def test_unknown_fields_are_ignored_and_named(checkpoint: Path) -> None:
    """Uses a separate server, because the log reports only a limited number of names."""
    with serving("--model", str(checkpoint), module=FAKE) as server, server.client() as client:
        odd = {"options": {"num_ctx": 5}, "keep\r\nalive: 1é": 1, "left_empty": None,
               "messages": [{**USER, "hue": 1}] * 3, "max_tokens": 4}  # fmt: skip
        for wrong in ({"mode": "speed"}, {"temperature": -1}, {"decoding": {"hue": 1}}):
            refused = client.post(CHAT, json={**odd, "refused_too": 1, **wrong})
            assert refused.status_code == 400
            assert "x-unmask-ignored" not in refused.headers
        for stream in (False, True):
            taken = client.post(CHAT, json={**odd, "stream": stream})
            assert set(taken.headers["x-unmask-ignored"].split(", ")) == {"options", "keep??alive??1?", "messages.hue"}
        assert server.log.count("Ignoring unsupported request field 'options' (logged once)") == 1
        for name in ("left_empty", "'mode'", "refused_too"):
            assert name not in server.log
        many = client.post(CHAT, json={**odd, **{f"field_{i}": i for i in range(500)}})
        assert len(many.headers["x-unmask-ignored"].split(", ")) == 16


# Numbers that forms of clients send as text, and identifiers that are numbers.
AS_TEXT: dict[str, dict[str, Any]] = {
    CHAT: {"max_tokens": "4", "temperature": "0.7", "top_p": "9e-1", "top_k": "5", "seed": "7", "n": "1", "user": 12,
           "frequency_penalty": "-0.5", "top_logprobs": "2", "logprobs": True, "length_penalty": "1", "min_p": "0.0"},
    TEXT: {"max_tokens": "4.0", "temperature": "2", "seed": "-3", "logprobs": "1", "best_of": "1", "n": "2"},
    RESPONSES: {"max_output_tokens": "4", "temperature": "1", "seed": "1", "top_logprobs": "0", "max_tool_calls": "1"},
    MESSAGES: {"max_tokens": "4", "temperature": "1e0", "top_k": "5", "seed": "1",
               "thinking": {"type": "disabled", "budget_tokens": "1024"}},
    GENERATE: {"max_tokens": "4", "num_denoising_steps": "4", "n": "1", "logprobs": "2"},
}  # fmt: skip


@pytest.mark.parametrize("route", AS_TEXT)
def test_numbers_may_be_texts(client: httpx.Client, route: str) -> None:
    def answer_to(more: dict[str, Any]) -> Any:
        taken = client.post(route, json={**BODIES[route], **more})
        assert taken.status_code == 200, taken.text
        assert "x-unmask-ignored" not in taken.headers
        if route in ROUTES:
            return read(route, taken.text, stream=False)
        return taken.json()["choices" if route == TEXT else "token_ids"]

    numbers = json.loads(re.sub(r'"(-?[0-9.]+(?:e-?[0-9]+)?)"', r"\1", json.dumps(AS_TEXT[route])))
    assert numbers != AS_TEXT[route]
    assert answer_to(AS_TEXT[route]) == answer_to(numbers)


def test_a_user_may_be_a_number(client: httpx.Client) -> None:
    assert client.post(RESPONSES, json={**BODIES[RESPONSES], "user": 12}).json()["user"] == "12"


# What clients send for a value that is not set, by the field of chat.
UNSET = {"max_tokens": -1, "max_completion_tokens": -1, "seed": -1, "model": "", "stop": ""}


@pytest.mark.parametrize("field", UNSET)
def test_values_that_clients_send_for_none_are_accepted(client: httpx.Client, field: str) -> None:
    body = request(CHAT, "hello") | {field: UNSET[field]}
    answer = client.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    unset = client.post(CHAT, json={name: value for name, value in body.items() if name != field}).json()
    assert answer.json()["choices"] == unset["choices"]


def test_a_seed_of_minus_one_is_random(client: httpx.Client) -> None:
    body = {"prompt": "hello", "temperature": 2.0, "max_tokens": 24, "ignore_eos": True}
    texts = {client.post(GENERATE, json={**body, "seed": -1}).json()["text"] for _ in range(4)}
    assert len(texts) > 1


@pytest.mark.parametrize("path", ["//v1/chat/completions", "/v1//chat///completions"])
def test_repeated_slashes_of_a_path_are_one(client: httpx.Client, path: str) -> None:
    assert client.post(path, json=BODIES[CHAT]).status_code == 200
    assert client.get("//v1//models").status_code == 200
    assert client.get("//v1//nothing").status_code == 404


@pytest.mark.parametrize("route", [GENERATE, TEXT, *ROUTES])
def test_fields_of_decoding_beside_it_are_refused(client: httpx.Client, route: str) -> None:
    for name, value in (("accept_threshold", 0.5), ("mode", "fast"), ("algorithm", "fixed")):
        refused = client.post(route, json={**BODIES[route], name: value})
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert f'send {{"decoding": {{"{name}": ...}}}}' in error["message"]
        assert error.get("param", name) == name
        assert client.post(route, json={**BODIES[route], name: None}).status_code == 200


def test_strict_fields_refuse_unknown_fields(strict: ServerProcess) -> None:
    with strict.client() as client:
        refused = client.post(CHAT, json={**BODIES[CHAT], "messages": [{**USER, "hue": 1}]})
        misplaced = client.post(CHAT, json={**BODIES[CHAT], "mode": "speed"})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, "unknown_field", "messages.hue")
    assert 'send {"decoding": {"mode": ...}}' in misplaced.json()["error"]["message"]


@pytest.mark.parametrize("route", [CHAT, TEXT, RESPONSES])
def test_streams_are_not_obfuscated(client: httpx.Client, route: str) -> None:
    for requested in (False, None, True):
        options = {"stream": True, "stream_options": {"include_obfuscation": requested}}
        taken = client.post(route, json={**BODIES[route], **options})
        assert taken.status_code == 200, taken.text
        assert "obfuscation" not in taken.text
        named = taken.headers.get("x-unmask-ignored")
        assert named == ("stream_options.include_obfuscation" if requested else None)


def test_stream_options_of_openai_are_ignored_by_messages(client: httpx.Client) -> None:
    answer = client.post(MESSAGES, json={**BODIES[MESSAGES], "stream_options": {"include_usage": True}})
    assert answer.headers["X-Unmask-Ignored"] == "stream_options"


@pytest.mark.parametrize("route", [CHAT, TEXT])
def test_continuous_usage_is_in_every_chunk(client: httpx.Client, route: str) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    body = {**BODIES[route], "max_tokens": 24, "ignore_eos": True, **options}
    chunks = [json.loads(data) for data in sse(client.post(route, json=body).text)[:-1]]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 24


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/docs"])
def test_head_is_get_without_a_body(client: httpx.Client, path: str) -> None:
    got, head = client.get(path), client.head(path)
    assert head.status_code == got.status_code == 200
    assert head.content == b""
    assert head.headers["content-type"] == got.headers["content-type"]
    assert client.get(path).status_code == 200  # the connection is still usable


def test_a_base_url_without_v1_serves_too(server: ServerProcess) -> None:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as ai:
        assert ai.chat.completions.create(**BODIES[CHAT]).choices
        assert ai.completions.create(model="tiny", prompt="x", max_tokens=4).choices
        assert [model.id for model in ai.models.list()] == ["tiny"]
        assert ai.models.retrieve("tiny").id == "tiny"


@pytest.mark.parametrize(
    ("path", "suggestion"),
    [
        ("/v1/chat/completion", "/v1/chat/completions"), ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/message", "/v1/messages"), ("/genrate", "/generate"), ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/wp-login.php", None), ("/" + "v1/chat/completions" * 4, None), ("/%20%0a", None),
    ],
)  # fmt: skip
def test_an_unknown_route_suggests_a_similar_one(client: httpx.Client, path: str, suggestion: str | None) -> None:
    answer = client.post(path, json={})
    assert answer.status_code == 404
    assert "there is no route POST /" in answer.text
    assert answer.text.partition("did you mean ")[2].startswith(f"{suggestion}?" if suggestion else "")
    assert ("did you mean" in answer.text) is (suggestion is not None)


# Further fields for those that exclude another field of the body, or need one.
MORE: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True}, "max_completion_tokens": {"max_tokens": None},
    "num_denoising_steps": {"max_tokens": 64}, "local_leap_radius": {"use_local_leap": True},
    "prompt_logprobs_stride": {"echo": True, "logprobs": 1},
}  # fmt: skip


def kinds(schema: dict[str, Any]) -> set[str]:
    """Returns the types of values that a schema has on its first level."""
    inner = [schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())]
    found = {kind["type"] for kind in inner if isinstance(kind.get("type"), str)}
    items = [kind.get("items", {}).get("type") for kind in inner if kind.get("type") == "array"]
    return found | {f"array of {item}" for item in items if item}


@pytest.mark.parametrize("route", BODIES)
def test_every_integer_field_of_a_route_accepts_integral_floats(fake: ServerProcess, route: str) -> None:
    """Clients in languages without integers send 20.0 for 20."""
    with fake.client() as client:
        document = client.get("/openapi.json").json()
        body = document["paths"][route]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        seen = set()
        for name, schema in document["components"]["schemas"][body.rpartition("/")[2]]["properties"].items():
            if not kinds(schema) & {"integer", "array of integer"} or name in ("prompt", "model"):
                continue
            (example,) = schema["examples"]
            if isinstance(example, str):  # ids, which are texts or integers
                continue
            many = isinstance(example, list)
            base = {**BODIES[route], **MORE.get(name, {})}
            floats = [float(item) for item in example] if many else float(example)
            exact, answer = (client.post(route, json={**base, name: value}) for value in (example, floats))
            assert answer.status_code == exact.status_code, (name, exact.text, answer.text)
            if exact.status_code == 200:
                seen.add(name)
            broken = [item + 0.5 for item in example] if many else example + 0.5
            assert client.post(route, json={**base, name: broken}).status_code == 400, name
    assert seen or route in ("/v1/messages/count_tokens", "/v1/infill"), seen


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        ("/v1/infill", {"segments": [{"text": "a"}, {"mask": 2.0}]}),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024.0}, "n": 1.0, "top_logprobs": 0.0}),
        (CHAT, {"n": 2.0, "seed": 1.0, "stream": True}),
        (TEXT, {"best_of": 1.0, "logprobs": 1.0}),
        (TEXT, {"prompt": [40, 41.0]}),
        (TEXT, {"prompt": ["hello", [40.0], [41]]}),
        (GENERATE, {"prompt": [40.0, 41.0], "stop_token_ids": [40, 41.0]}),
        (GENERATE, {"decoding": {"max_steps_per_block": 8.0}}),
        (GENERATE, {"decoding": {"algorithm": "fixed", "steps": 4.0}}),
        (GENERATE, {"decoding": {"algorithm": "local_leap", "local_leap": {"radius": 4.0}}}),
        (GENERATE, {"decoding": {"block_length": 8.0}}),
    ],
)
def test_integers_within_other_fields_accept_integral_floats(
    client: httpx.Client, route: str, fields: dict[str, Any]
) -> None:
    answer = client.post(route, json={**BODIES[route], "model": None, **fields})
    assert answer.status_code == 200, answer.text


# Each route, the name of its token limit, and further fields.
LIMITS: list[tuple[str, str, dict[str, Any]]] = [
    (CHAT, "max_tokens", {}), (CHAT, "max_completion_tokens", {"max_tokens": None}), (TEXT, "max_tokens", {}),
    (TEXT, "max_tokens", {"prompt": "x" * 480, "suffix": "more", "logit_bias": None}),
    (RESPONSES, "max_output_tokens", {}), (MESSAGES, "max_tokens", {}), (GENERATE, "max_tokens", {}),
    (GENERATE, "max_tokens", {"prompt": None, "messages": [USER]}),
]  # fmt: skip
LENGTH = 512  # of the tiny model, prompt and answer together


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("route", "name", "more"), LIMITS)
def test_a_limit_beyond_the_models_length_is_lowered(
    client: httpx.Client, strict: ServerProcess, route: str, name: str, more: dict[str, Any], stream: bool
) -> None:
    body = {**BODIES[route], "stream": stream, "logit_bias": {"257": 100}, **more}  # answers end at once
    for limit, ignored in ((LENGTH + 1, name), (LENGTH, None)):
        taken = client.post(route, json={**body, name: limit})
        assert taken.status_code == 200, taken.text
        assert taken.headers.get("x-unmask-ignored") == ignored
    for limit in (0, -2, 2**31 + 1):
        assert client.post(route, json={**body, name: limit}).status_code == 400
    with strict.client() as picky:
        refused = picky.post(route, json={**body, name: 32000})
        assert refused.json()["error"]["message"].startswith(f"{name}: 32000 exceeds max_model_len")


def test_max_tokens_are_lowered_to_the_length_that_the_prompt_leaves(client: httpx.Client) -> None:
    body = {"prompt": "x" * 500, "max_tokens": LENGTH + 1, "ignore_eos": True}
    assert client.post(TEXT, json=body).json()["usage"]["completion_tokens"] == 12
