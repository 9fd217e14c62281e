"""Tests with valid and invalid requests generated from the OpenAPI document: only documented statuses and answers."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from runtime.algorithms.base import algorithms_for
from tests.examples import examples
from tests.server.harness import FAKE, KEY, ServerProcess, serving
from tests.wait import TIMEOUT

# All checks of a single answer but `positive_data_acceptance`: fields that a schema allows may exclude each other.
CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, negative_data_rejection,
    response_schema_conformance, response_headers_conformance,
]  # fmt: skip
OPERATIONS = [
    ("POST", "/generate"), ("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("POST", "/v1/responses"),
    ("POST", "/v1/messages"), ("POST", "/v1/messages/count_tokens"), ("POST", "/v1/infill"), ("POST", "/tokenize"),
    ("POST", "/v1/fim/completions"), ("POST", "/infill"), ("POST", "/v1/decisions"), ("POST", "/v1/systemone"),
    ("POST", "/detokenize"), ("GET", "/v1/models/{name}"),
]  # fmt: skip


# Any client error rejects an invalid body: a random one may be over the size limit (413), which is checked first.
REJECTIONS = {"checks": {"negative_data_rejection": {"expected-statuses": ["4xx", "5xx"]}}}


@pytest.fixture(scope="module")
def api(server: ServerProcess) -> Any:
    config = schemathesis.Config.from_dict(REJECTIONS)
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json", config=config)


def test_every_route_is_listed(api: Any) -> None:
    found = {(method.upper(), path) for path, methods in api.raw_schema["paths"].items() for method in methods}
    unprotected = {
        ("GET", path) for path in ("/health", "/ready", "/startup", "/metrics", "/v1/models", "/tokenizer_info")
    }
    closed = {("POST", f"/v1/{what}_lora_adapter") for what in ("load", "unload")}  # without --lora-routes
    closed |= {("POST", f"/{what}_profile") for what in ("start", "stop")}  # without --profiler
    assert found == {*OPERATIONS[:-1], ("GET", "/v1/models/{name}"), *unprotected, *closed}


def test_enums_and_constants_are_of_one_type(api: Any) -> None:
    def look(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(enum := value.get("enum"), list):
                assert {type(item) for item in enum} == {str}, value
            if "const" in value:
                kinds = {"boolean": bool, "integer": int, "number": float, "string": str}
                assert type(value["const"]) is kinds[value.get("type", "string")], value
            for item in value.values():
                look(item)
        elif isinstance(value, list):
            for item in value:
                look(item)

    look(api.raw_schema)


def test_decoding_is_described_by_what_the_engine_declares(api: Any) -> None:
    schema = api.raw_schema["components"]["schemas"]["Decoding"]
    fields = {name: field["anyOf"][0] for name, field in schema["properties"].items()}
    assert fields["mode"]["enum"] == ["speed", "balanced", "quality"]
    assert fields["algorithm"]["enum"] == [rule.key for rule in algorithms_for("multi_bd")]
    assert fields["accept_threshold"] == {"type": "number", "minimum": 0, "maximum": 1}
    assert fields["max_steps_per_block"] == {"type": "integer", "minimum": 1, "maximum": 2**31}
    assert fields["confidence_metric"]["enum"] == ["max_prob", "margin", "neg_entropy"]
    for rule in algorithms_for("multi_bd"):
        for field in rule.fields:
            outer, _, inner = field.name.partition(".")
            assert not inner or inner in fields[outer]["properties"]
            description = schema["properties"][outer]["description"]
            assert inner or field.help in description
    for name in ("GenerateRequest", "ChatRequest", "CompletionRequest"):
        body = api.raw_schema["components"]["schemas"][name]
        assert body["properties"]["decoding"]["anyOf"][0] == {"$ref": "#/components/schemas/Decoding"}


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_the_server_conforms_to_its_openapi_document(api: Any, method: str, path: str, mode: GenerationMode) -> None:
    if method == "GET" and mode is GenerationMode.NEGATIVE:
        pytest.skip("any text is a name")

    @examples(24, suppress_health_check=list(HealthCheck))
    @given(case=api[path][method].as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        if isinstance(case.body, dict) and "token" not in path:
            tokens = case.body.get("max_tokens", 8)
            if type(tokens) is int and 1 <= tokens <= 2**31:
                case.body["max_tokens"] = min(tokens, 8)  # longer answers test nothing more
        streams = isinstance(case.body, dict) and case.body.get("stream") is True
        # Schemathesis compares the list of a stream's events with the schema of the whole text.
        excluded = [response_schema_conformance] if streams else []
        case.call_and_validate(checks=CHECKS, excluded_checks=excluded, timeout=TIMEOUT)

    run()


def test_the_server_is_healthy_afterwards(server: ServerProcess) -> None:
    server.until_idle()
    with server.client() as client:
        assert client.get("/ready").status_code == 200
    assert "Traceback" not in server.log


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_schemathesis_itself_finds_nothing(checkpoint: Path, tmp_path: Path) -> None:
    """Runs every check and phase but those of several requests on a server that needs a key: 5,000 requests."""
    config = tmp_path / "schemathesis.toml"
    # a body that is too large is refused with 413, whatever other errors it has
    config.write_text(
        "[checks]\nnegative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 408, 409, 413]\n"
    )
    program = Path(sys.executable).with_name("schemathesis")
    flags = ["--checks", "all", "--exclude-checks", "positive_data_acceptance", "--max-examples", "20"]
    flags += ["--phases", "examples,coverage,fuzzing", "--exclude-path", "/metrics", "--no-color"]
    flags += ["--request-timeout", f"{TIMEOUT:g}"]
    with serving("--model", str(checkpoint), "--max-model-len", "64", "--api-key", KEY, module=FAKE) as server:
        command = [program, "--config-file", config, "run", f"{server.url}/openapi.json", *flags]
        finished = subprocess.run(
            [*command, "-H", f"Authorization: Bearer {KEY}"], cwd=tmp_path, capture_output=True, text=True
        )
    assert finished.returncode == 0, finished.stdout[-6000:] + finished.stderr[-2000:]


def test_the_document_has_the_defaults_of_the_server(api: Any) -> None:
    defaults = api.raw_schema["x-unmask-defaults"]
    algorithm = defaults["decoding"]["algorithm"]
    properties = api.raw_schema["components"]["schemas"]["Decoding"]["properties"]
    assert algorithm in properties["algorithm"]["anyOf"][0]["enum"]
    assert set(defaults["algorithms"]) == set(properties["algorithm"]["anyOf"][0]["enum"])
    assert 0 <= defaults["algorithms"]["threshold"]["fields"]["accept_threshold"] <= 1
    assert {"max_tokens", "temperature", "top_p", "top_k"} <= defaults.keys()
    own = defaults["decoding"] | defaults["algorithms"][algorithm]["fields"]
    assert {name: properties[name]["default"] for name in own if "." not in name} == {
        name: value for name, value in own.items() if "." not in name
    }
    for request in ("ChatRequest", "CompletionRequest", "GenerateRequest", "MessagesRequest"):
        fields = api.raw_schema["components"]["schemas"][request]["properties"]
        for name in ("temperature", "top_p", "top_k", "min_p"):
            assert fields[name]["default"] == defaults[name]
