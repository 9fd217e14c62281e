"""Tests of request bodies with a `Content-Encoding`: decoded within the limit of a body, on every route, or refused."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import zstandard

from runtime.errors import RequestError
from runtime.server.http_protocol import content_encoding
from runtime.server.http_protocol.content_encoding import (
    DECODED_STEP_BYTES,
    MAX_FRAMES,
    ZSTD_WINDOW_LOG,
    codings,
    decoding,
)
from runtime.server.serving import request_body
from runtime.server.serving.request_body import MAX_BODY

USER = [{"role": "user", "content": "hello"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER, "max_tokens": 4},
    "/v1/completions": {"prompt": "hello", "max_tokens": 4},
    "/v1/responses": {"input": "hello", "max_output_tokens": 4}, "/v1/messages": {"messages": USER, "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": USER}, "/v1/infill": {"text": "a<mask:2>b"},
    "/v1/fim/completions": {"prompt": "hello", "max_tokens": 4}, "/infill": {"input_prefix": "a", "input_suffix": "b"},
    "/generate": {"prompt": "hello", "max_tokens": 4}, "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [40, 41]},
}  # fmt: skip


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


ENCODERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-GZip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
    "zstd": ("zstd", zstd),
    "gzip members": ("gzip", lambda data: gzip.compress(data[:5]) + gzip.compress(data[5:])),
    "zstd frames": ("zstd", lambda data: zstd(data[:5]) + zstd(data[5:])),
    "two codings": ("deflate, gzip", lambda data: gzip.compress(zlib.compress(data))),
    "three codings": ("zstd,identity , deflate,gzip", lambda data: gzip.compress(zlib.compress(zstd(data)))),
}


def post(client: httpx.Client, route: str, data: bytes, coding: str) -> httpx.Response:
    return client.post(route, content=data, headers={"Content-Type": "application/json", "Content-Encoding": coding})


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("route", ROUTES)
def test_every_coding_is_decoded_on_every_route(client: httpx.Client, route: str, name: str) -> None:
    coding, encode = ENCODERS[name]
    data = json.dumps(ROUTES[route]).encode()
    answer = post(client, route, encode(data), coding)
    assert answer.status_code == 200, answer.text
    for mark in ("", "identity"):
        assert post(client, route, data, mark).status_code == 200


def test_codings_in_several_headers_are_decoded(client: httpx.Client) -> None:
    data = gzip.compress(zlib.compress(json.dumps(ROUTES["/generate"]).encode()))
    headers = [("Content-Type", "application/json"), ("Content-Encoding", "deflate"), ("Content-Encoding", "gzip")]
    assert client.post("/generate", content=data, headers=headers).status_code == 200


@pytest.mark.parametrize("coding", ["br", "compress", "gzip, br", "gzip gzip", "é".encode(), ", ".join(["gzip"] * 9)])
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/tokenize"])
def test_other_codings_are_refused_by_the_headers_name(client: httpx.Client, route: str, coding: Any) -> None:
    refused = post(client, route, b"{}", coding)
    assert refused.status_code == 415
    assert refused.headers["accept-encoding"] == "gzip, deflate, zstd"
    error = refused.json()["error"]
    assert error["message"].startswith("Content-Encoding: ")
    assert error["type"] == "invalid_request_error"
    if route.startswith("/v1/messages"):
        assert refused.json()["type"] == "error"
    else:
        assert error["param"] == "Content-Encoding"


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "not encoded": lambda data: b'{"prompt": "hello"}',
    "cut off": lambda data: data[:-1],
    "half": lambda data: data[: len(data) // 2],
    "first byte": lambda data: data[:1],
    "trailing garbage": lambda data: data + b"garbage",
    "trailing zeros": lambda data: data + bytes(16),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("kind", ["gzip", "deflate", "raw deflate", "zstd", "two codings"])
def test_broken_data_is_refused(client: httpx.Client, kind: str, name: str) -> None:
    coding, encode = ENCODERS[kind]
    data = BROKEN[name](encode(json.dumps({"prompt": "hello " * 50, "max_tokens": 2}).encode()))
    for route in ("/generate", "/v1/messages"):
        refused = post(client, route, data, coding)
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"]["message"].startswith("Content-Encoding: the body cannot be decoded as ")


def spaces(size: int) -> bytes:
    return b'{"prompt": "' + b" " * size + b'"}'


REPEATS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstd,
    "gzip, gzip": lambda data: gzip.compress(gzip.compress(data)),
    "zstd, gzip": lambda data: gzip.compress(zstd(data)),
}


@pytest.mark.parametrize("coding", REPEATS)
def test_decoding_ends_at_the_limit_of_a_body(coding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 2 * DECODED_STEP_BYTES
    decoded: list[int] = []

    def counted(data: bytes, name: str) -> Iterator[bytes]:
        for piece in decoding(data, name):
            decoded.append(len(piece))
            yield piece

    monkeypatch.setattr(request_body, "MAX_BODY", limit)
    monkeypatch.setattr(request_body, "decoding", counted)
    with pytest.raises(RequestError) as refused:
        asyncio.run(request_body.decode_body(REPEATS[coding](bytes(10 * limit)), codings([coding])))
    assert refused.value.status == 413
    assert sum(decoded) < 2 * limit


def test_zstd_is_decoded_in_short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of input makes 128 KiB of output per 4 bytes at most."""
    outputs: list[int] = []

    class Recorded:
        def __init__(self, **options: Any) -> None:
            self.stream = zstandard.ZstdDecompressor(**options).decompressobj()

        def decompressobj(self) -> Recorded:
            return self

        def decompress(self, piece: bytes) -> bytes:
            output = self.stream.decompress(piece)
            outputs.append(len(output))
            return output

        def __getattr__(self, name: str) -> Any:
            return getattr(self.stream, name)

    monkeypatch.setattr(content_encoding, "ZSTD_INPUT_BYTES", 16)
    monkeypatch.setitem(sys.modules, "zstandard", SimpleNamespace(ZstdDecompressor=Recorded, ZstdError=ValueError))
    assert sum(map(len, decoding(zstd(bytes(2**22)), "zstd"))) == 2**22
    assert max(outputs) <= 5 * 2**17


def test_a_window_of_unusual_size_is_refused(client: httpx.Client) -> None:
    options = zstandard.ZstdCompressionParameters(window_log=ZSTD_WINDOW_LOG + 1, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=options).compressobj()
    data = stream.compress(json.dumps(ROUTES["/generate"]).encode()) + stream.flush()
    assert post(client, "/generate", data, "zstd").status_code == 400


@pytest.mark.parametrize(("coding", "encode"), [("gzip", gzip.compress), ("zstd", zstd)])
def test_the_number_of_parts_is_limited(client: httpx.Client, coding: str, encode: Callable[[bytes], bytes]) -> None:
    body, empty = encode(json.dumps(ROUTES["/generate"]).encode()), encode(b"")
    assert post(client, "/generate", empty * (MAX_FRAMES - 1) + body, coding).status_code == 200
    refused = post(client, "/generate", empty * MAX_FRAMES + body, coding)
    assert refused.status_code == 400
    assert "parts" in refused.json()["error"]["message"]


def test_the_limit_of_a_body_holds_for_what_is_decoded(client: httpx.Client) -> None:
    exact = spaces(MAX_BODY - len(spaces(0)))
    assert len(exact) == MAX_BODY
    for coding, encode in (("gzip", gzip.compress), ("deflate", zlib.compress), ("zstd", zstd)):
        assert post(client, "/tokenize", encode(exact), coding).status_code != 413
        for route, kind in (("/tokenize", "invalid_request_error"), ("/v1/messages", "request_too_large")):
            refused = post(client, route, encode(exact + b" "), coding)
            assert (refused.status_code, refused.json()["error"]["type"]) == (413, kind)


@pytest.mark.parametrize("kind", ENCODERS)
def test_steps_are_small_whatever_the_data(kind: str) -> None:
    rng = random.Random(kind)
    coding, encode = ENCODERS[kind]
    for data in (
        b"a",
        rng.randbytes(3 * DECODED_STEP_BYTES + 1),
        bytes(5 * DECODED_STEP_BYTES),
        (b"ab" * 40000 + rng.randbytes(70000)) * 3,
    ):
        encoded = encode(data)
        for name in reversed(codings([coding])):
            pieces = list(decoding(encoded, name))
            assert max(map(len, pieces)) <= DECODED_STEP_BYTES
            encoded = b"".join(pieces)
        assert encoded == data


@pytest.mark.parametrize("kind", ["gzip", "deflate", "zstd"])
def test_random_damage_is_an_error_or_the_same_text(kind: str) -> None:
    rng = random.Random(kind)
    coding, encode = ENCODERS[kind]
    text = json.dumps({"prompt": [rng.randrange(100) for _ in range(300)]}).encode()
    data = encode(text)
    for _ in range(300):
        broken = bytearray(data)
        broken[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        found = decoded(bytes(broken), coding)  # a damaged header may still describe the same data
        assert found in (None, text) or coding == "zstd"  # zstd data has a checksum only if the client adds one


def decoded(data: bytes, coding: str) -> bytes | None:
    """Returns the decoded data; None if it is refused with status 400 and the name of the header."""
    try:
        return b"".join(decoding(data, coding))
    except RequestError as error:
        if error.status == 400 and error.message.startswith("Content-Encoding: "):
            return None
        raise


@pytest.mark.parametrize("route", ROUTES)
def test_a_byte_order_mark_before_a_body_is_skipped(client: httpx.Client, route: str) -> None:
    data = b"\xef\xbb\xbf" + json.dumps(ROUTES[route]).encode()
    headers = {"Content-Type": "application/json"}
    assert client.post(route, content=data, headers=headers).status_code == 200
    assert post(client, route, gzip.compress(data), "gzip").status_code == 200
    assert client.post(route, content=data + b" " * 20000, headers=headers).status_code == 200
    twice = client.post(route, content=b"\xef\xbb\xbf" + data, headers=headers)
    assert twice.status_code == 400
