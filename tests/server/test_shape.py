"""Tests of limits on the shape of a body, which refuse costly bodies before they are parsed."""

import asyncio
import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import runtime.server.app  # noqa: F401 (declares the routes)
from runtime.errors import RequestError
from runtime.server.admin.protocol import DetokenizeRequest
from runtime.server.generate.protocol import GenerateRequest
from runtime.server.openai.protocol import ChatRequest, CompletionRequest
from runtime.server.serving import chat, request_body
from runtime.server.serving.generation import MAX_ENTRIES
from runtime.server.serving.preprocessor import SMALL_TEXT, Preprocessor
from runtime.server.serving.request_body import MAX_MESSAGES, MAX_PARTS, parse_body
from runtime.tokenizer import Tokenizer
from tests.on_loop import on_loop
from tests.server.bombs import CHAT, IDS, LARGEST, OWN, SHAPES, TEXT

KINDS: dict[str, Any] = {CHAT: ChatRequest, TEXT: CompletionRequest, OWN: GenerateRequest, IDS: DetokenizeRequest}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)
TRICKY = st.text(alphabet='\\"[]{},:x')


def refusal(kind: type, data: bytes) -> RequestError | None:
    """Returns the error with which the body is refused; None if it is accepted."""
    try:
        parse_body(kind, data)
    except RequestError as error:
        return error
    return None


@pytest.mark.parametrize("name", SHAPES)
def test_costly_shapes_are_refused_before_they_are_parsed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(request_body, "parse_json", lambda data: pytest.fail("the body was parsed"))
    route, data = SHAPES[name]
    error = refusal(KINDS[route], data)
    assert error.status == 400
    assert re.search(r"more than \d+ (values|strings|objects|fields|digits)", error.message)


@pytest.mark.parametrize("name", LARGEST)
@on_loop
async def test_the_largest_allowed_shapes_are_read_while_other_tasks_run(name: str) -> None:
    """Other tasks run once per counted piece, and between the other steps."""
    route, data = LARGEST[name]
    preparer = Preprocessor(lambda: pytest.fail("no engine is asked"))
    reading, iterations = asyncio.create_task(preparer._parse(KINDS[route], data, "")), 0
    while not reading.done():
        await asyncio.sleep(0)
        iterations += 1
    assert iterations > len(data) // request_body.SCAN_BYTES
    if reading.exception() is not None:
        with pytest.raises(RequestError) as refused:
            reading.result()
        assert refused.value.status == 400
        assert len(refused.value.message) < 600


@pytest.mark.parametrize("size", [SMALL_TEXT, SMALL_TEXT + 1])
def test_only_short_texts_are_encoded_on_the_loop(tokenizer: Tokenizer, size: int) -> None:
    threads: list[int] = []

    class Noted:
        def encode_limited(self, *args: Any, **fields: Any) -> Any:
            threads.append(threading.get_ident())
            return tokenizer.encode_limited(*args, **fields)

    async def stays() -> None:
        await asyncio.Event().wait()

    async def encode() -> list[int]:
        request = SimpleNamespace(receive=stays, state=SimpleNamespace(), scope={})
        info = SimpleNamespace(max_model_len=2**17)
        preparer = Preprocessor(lambda: cast(Any, (info, Noted())))
        return await preparer.encode(cast(Any, request), "x" * size, add_bos=False)

    assert len(asyncio.run(encode())) == size
    assert (threads == [threading.get_ident()]) is (size == SMALL_TEXT)


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer(checkpoint)


@pytest.mark.parametrize("piece", range(1, 8))
def test_a_body_is_counted_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(request_body, "SCAN_BYTES", piece)
    monkeypatch.setattr(request_body, "MAX_STRINGS", 4)
    monkeypatch.setattr(request_body, "MAX_CONTAINERS", 2)
    request_body.check_shape(rb'{"a[\\\\\"{":["{\"\\","[[\\","]"]}')
    with pytest.raises(RequestError, match="objects and lists"):
        request_body.check_shape(rb'{"a":["\"{\\",[]]}')
    with pytest.raises(RequestError, match="strings"):
        request_body.check_shape(rb'["\\","\"","","",""]')


def test_an_open_string_hides_nothing_of_the_next_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "MAX_CONTAINERS", 4)
    for hiding in (b'"', b'{"a', rb'"\\"', b'""" '):
        with pytest.raises(RequestError, match="objects and lists"):
            request_body.check_shape(hiding, b'{"a":[[],[],[]]}')
    with pytest.raises(RequestError, match="objects and lists"):
        request_body.check_shape(b'{"a":[]}', b'{"a":[]}', b"[]")
    request_body.check_shape(b'"', b'{"a":[[],[]]}')


def test_arguments_of_each_call_are_counted_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [
        {"function": {"name": "f", "arguments": text}} for text in ('"', '{"a":[' + ",".join(["[]"] * 9_000) + "]}")
    ]
    messages = [{"role": "assistant", "tool_calls": calls}, {"role": "user", "content": "x"}]
    body = parse_body(ChatRequest, json.dumps({"messages": messages}).encode())
    monkeypatch.setattr(chat, "from_json", lambda text: pytest.fail("the arguments were parsed"))
    with pytest.raises(RequestError, match="more than 8192 objects and lists"):
        body.to_chat()


def test_a_list_ends_at_its_first_error() -> None:
    error = refusal(ChatRequest, json.dumps({"messages": [{}] * 2000}).encode())
    assert (error.status, error.param) == (400, "messages[0].role")
    counts = []
    for number in (2, 2000):
        with pytest.raises(pydantic.ValidationError) as invalid:
            ChatRequest.model_validate({"messages": [{}] * number})
        counts.append(invalid.value.error_count())
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("body", "param", "cap"),
    [
        ({"messages": [{"role": "user", "content": ""}] * (MAX_MESSAGES + 1)}, "messages", MAX_MESSAGES),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * (MAX_PARTS + 1)}]},
         "messages[0].content", MAX_PARTS),
        ({"messages": [], "metadata": {str(i): "" for i in range(MAX_ENTRIES + 1)}}, "metadata", MAX_ENTRIES),
        ({"messages": [], "chat_template_kwargs": {str(i): "" for i in range(MAX_ENTRIES + 1)}}, "chat_template_kwargs",
         MAX_ENTRIES),
    ],
)  # fmt: skip
def test_a_list_with_too_many_items_is_refused_by_name(body: dict[str, Any], param: str, cap: int) -> None:
    error = refusal(ChatRequest, json.dumps(body).encode())
    assert error.param == param
    assert error.status == 400
    assert str(cap) in error.message


def held(value: Any) -> tuple[int, int, int]:
    """Returns the numbers of strings, containers and values in a JSON value, counted recursively."""
    if isinstance(value, str):
        return 1, 0, 1
    if isinstance(value, list | dict):
        inner = [held(item) for item in (value.values() if isinstance(value, dict) else value)]
        texts, containers, values = (sum(column) for column in zip((0, 0, 0), *inner, strict=True))
        return texts + (len(value) if isinstance(value, dict) else 0), containers + 1, values + 1
    return 0, 0, 1


@given(JSON | st.lists(TRICKY) | st.dictionaries(TRICKY, TRICKY), st.booleans())
def test_a_shape_is_counted_right(value: Any, ascii_only: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    texts, containers, values = held(value)
    with pytest.MonkeyPatch.context() as patch:

        def passes(limit: str, count: int) -> bool:
            patch.setattr(request_body, limit, count)
            try:
                request_body.check_shape(data)
            except RequestError:
                return False
            finally:
                patch.undo()
            return True

        assert passes("MAX_STRINGS", texts)
        assert passes("MAX_CONTAINERS", containers)
        assert passes("MAX_VALUES", values)
        assert not texts or not passes("MAX_STRINGS", texts - 1)
        assert not containers or not passes("MAX_CONTAINERS", containers - 1)
