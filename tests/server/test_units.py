"""Unit tests without processes: messages, bodies, metrics."""

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from runtime.config import EngineConfig
from runtime.errors import RequestError
from runtime.request.engine_messages import DecodingParams, EngineOutput, EngineStats, RequestSpec
from runtime.request.output import TokenLogprob
from runtime.server.admin import routes
from runtime.server.anthropic import messages as messages_route
from runtime.server.engine_client import ipc_protocol
from runtime.server.generate import serving
from runtime.server.generate.protocol import GenerateRequest
from runtime.server.llama_cpp import infill
from runtime.server.logs import redact_queries
from runtime.server.metrics import EngineMetrics
from runtime.server.mistral import fim
from runtime.server.openai import chat, completions, responses
from runtime.server.openai.protocol import ChatRequest
from runtime.server.serving.logprobs import PromptEcho
from runtime.server.serving.preprocessor import Preprocessor
from runtime.server.serving.request_body import parse_body
from runtime.server.serving.routes import fast_routes
from runtime.tokenizer import Tokenizer
from tests.examples import examples
from tests.request.test_sampling_params import info

FIXED = DecodingParams(algorithm="fixed", values={"steps": 4})
SPEC = RequestSpec(id="a", prompt=[1, 2], max_tokens=3, seed=2**64 - 1, decoding=FIXED)


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (ipc_protocol.decode_command, message)
        for message in (
            ipc_protocol.Configure(EngineConfig(model="x", eos_token_ids=(1, 2)), (1,), "info", "text"),
            ipc_protocol.Add.of([SPEC]), ipc_protocol.Abort(["a"]), ipc_protocol.Ping(), ipc_protocol.Stop("why"),
        )
    ]
    + [
        (ipc_protocol.decode_event, message)
        for message in (
            ipc_protocol.Loading("weights", 5, 2**40),
            ipc_protocol.Outputs([EngineOutput(id="a", nfe=1, new_tokens=[1], finish_reason="stop", masked=[0])]),
            ipc_protocol.Stats(EngineStats(waiting=1, step_seconds=[0.5])),
            ipc_protocol.Fatal("a sentence"),
        )
    ],
)  # fmt: skip
def test_messages_are_equal_after_encoding_and_decoding(decode: Any, message: Any) -> None:
    assert decode(ipc_protocol.encode(message)) == message


def test_a_hello_of_another_version_is_refused() -> None:
    assert ipc_protocol.decode_hello(ipc_protocol.encode(ipc_protocol.Hello(ipc_protocol.VERSION, 5))).pid == 5
    with pytest.raises(ValueError, match="version 99"):
        ipc_protocol.decode_hello(ipc_protocol.encode(ipc_protocol.Hello(99, 5)))
    for nonsense in (b"", b"\x00", ipc_protocol.encode(ipc_protocol.Ping())):
        with pytest.raises(ValueError, match="not a hello"):
            ipc_protocol.decode_hello(nonsense)


def test_totals_outlive_their_backend_and_gauges_do_not() -> None:
    figures = EngineMetrics()
    figures.current[0] = EngineStats(pages_total=10, pages_used=5, generated_tokens=100, forwards_commit=2)
    figures.current[0].steps_eager_not_captured, figures.current[0].graph_bytes = 3, 50
    figures.current[1] = EngineStats(pages_total=10, pages_cached=4, generated_tokens=10)
    figures.retire(0)
    figures.retire(0)
    figures.current[0] = EngineStats(generated_tokens=1, pages_total=10, steps_eager_not_captured=4, graph_bytes=7)
    found = {sample.name + str(sample.labels or ""): sample.value for m in figures.collect() for sample in m.samples}
    assert found["unmask_generated_tokens_total"] == 111
    assert found["unmask_forwards_total{'kind': 'commit'}"] == 2
    assert found["unmask_engine_steps_eager_total{'reason': 'new'}"] == 7
    assert found["unmask_graph_memory_bytes"] == 7
    assert found["unmask_kv_pages"] == 20
    assert found["unmask_kv_pages_free"] == 16
    assert found["unmask_kv_usage_ratio"] == 0


@pytest.mark.parametrize(
    ("live", "waiting_by_replica", "requests"),
    [
        ([0], [0], (0, 0)),
        ([5], [0], (5, 0)),  # although the engine, between two steps, has none
        ([20], [0], (16, 4)),  # more than an engine runs
        ([5], [2], (3, 2)),  # its pages are full
        ([1], [7], (0, 1)),  # the other requests have been aborted since
        ([20, 3], [4, 0], (19, 4)),
        ([4, 0], [], (4, 0)),  # no engine has reported yet
    ],
)
def test_requests_are_counted_as_they_are_now(
    live: list[int], waiting_by_replica: list[int], requests: tuple[int, int]
) -> None:
    figures = EngineMetrics()
    figures.live_by_replica, figures.max_running_requests = live, 16
    figures.current = {replica: EngineStats(waiting=waiting) for replica, waiting in enumerate(waiting_by_replica)}
    assert figures.requests() == requests


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def outcome(kind: type, data: bytes) -> int:
    """Returns the status for a body; 0 if its error message is too long."""
    try:
        parse_body(kind, data)
    except RequestError as error:
        return error.status if len(error.message) < 600 else 0
    return 200


@examples(60)
@given(st.dictionaries(st.sampled_from(sorted(ChatRequest.model_fields)), ANY_JSON))
def test_any_body_of_a_chat_is_accepted_or_refused(body: dict[str, object]) -> None:
    assert outcome(ChatRequest, msgspec.json.encode(body)) in (200, 400)


@examples(100)
@given(st.binary())
def test_any_bytes_are_accepted_or_refused(data: bytes) -> None:
    assert outcome(GenerateRequest, data) in (200, 400)


def test_a_text_is_called_too_long_only_if_it_is(checkpoint: Path) -> None:
    tokenizer = Tokenizer(checkpoint)
    for text in ("a" * 50, "🙂" * 50, " " * 50, "<|mask|>" * 50, ""):
        count = len(tokenizer.encode(text))
        assert not any(tokenizer.certainly_exceeds(text, tokens) for tokens in (count, count + 1))
    assert tokenizer.certainly_exceeds("a" * 10**5, 512)


def test_text_without_template_begins_with_the_bos_token_of_the_model(checkpoint: Path) -> None:
    tokenizer = Tokenizer(checkpoint)
    preparer = Preprocessor(lambda: (info(max_token_id=263, bos_token_id=7), tokenizer))
    request = Request({"type": "http"})
    assert asyncio.run(preparer.encode_each(request, ["ab", [1, 2]])) == [[7, *tokenizer.encode("ab")], [1, 2]]
    assert asyncio.run(preparer.encode(request, "ab")) == [7, *tokenizer.encode("ab")]


def test_a_bos_token_that_a_rendered_prompt_has_is_not_added(checkpoint: Path) -> None:
    tokenizer = Tokenizer(checkpoint)
    role = tokenizer.token_id("<role>")
    preparer = Preprocessor(lambda: (info(max_token_id=263, bos_token_id=role), tokenizer))
    request = Request({"type": "http"})
    a = tokenizer.encode("a")
    for text, ids in (("<role>a", [role, *a]), ("a<role>", [role, *a, role]), ("a", [role, *a])):
        assert asyncio.run(preparer.encode_each(request, [text], parse_special=True)) == [ids]
        assert asyncio.run(preparer.encode(request, text, parse_special=True)) == ids
    assert asyncio.run(preparer.encode(request, "<role>a", add_bos=False, parse_special=True)) == [role, *a]
    assert asyncio.run(preparer.encode(request, "<role>")) == [role, *tokenizer.encode("<role>")]
    for text, ids, offsets in (("<role>a", [role, *a], [0, 6]), ("aa", [role, *a, *a], [0, 0, 1])):
        echo = PromptEcho([text], silent=True, parse_special=True)
        choice: Any = SimpleNamespace(index=0, spec=SimpleNamespace(prompt=ids, logprobs=None))
        echo.attach([choice], 1, info(bos_token_id=role), tokenizer)
        scored: Any = SimpleNamespace(token_logprobs=[TokenLogprob(id, -1.0, []) for id in ids[1:]])
        echo.scores[0] = scored
        assert [offset for _, offset in echo.entries(choice)] == offsets


def test_queries_of_signed_hub_urls_are_removed_from_the_log() -> None:
    def log_of(logger: str) -> str:
        asked = ("https://cdn.example/blob?X-Signature=secret",)
        record = logging.LogRecord(logger, logging.WARNING, "", 0, "%s fails", asked, None)
        assert redact_queries(record)
        return record.getMessage()

    assert log_of("huggingface_hub.file_download") == "https://cdn.example/blob fails"
    assert log_of("runtime").endswith("=secret fails")


def test_the_hub_client_logs_each_line_once_and_without_a_signature() -> None:
    program = """
import logging
from runtime.server.logs import configure_logging
configure_logging("info", "json", "frontend")
import huggingface_hub.utils.logging
logging.getLogger("huggingface_hub.file_download").warning("%s fails", "https://cdn.example/blob?X-Signature=secret")
"""
    log = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr
    assert log.count("https://cdn.example/blob fails") == 1
    assert "secret" not in log


def test_raw_body_routes_are_found_by_method_and_path() -> None:
    """Checks that they are the generating routes and the token counter, and no route whose response FastAPI builds."""
    modules = (chat, completions, serving, messages_route, responses, fim, infill, routes)
    found = fast_routes(module.router for module in modules)
    paths = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/fim/completions"}
    unversioned = {path.removeprefix("/v1") for path in paths}
    messages = {"/v1/messages", "/v1/messages/count_tokens"}
    others = {"/generate", "/v1/infill", "/infill"}
    assert set(found) == {("POST", path) for path in (*paths, *unversioned, *messages, *others)}
    for path in paths:
        assert found["POST", path] is found["POST", path.removeprefix("/v1")]
