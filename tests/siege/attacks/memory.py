"""Attacks that send more than any request needs: pipelines, headers, addresses, trailers, chunk extensions."""

from tests.siege.registry import attack
from tests.siege.target import Target

MB = 1_000_000
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = ("Content-Type: application/json", "Transfer-Encoding: chunked")


@attack("pipeline", "8.2 MB of GET / on one connection, answers read, every 3 s")
async def pipeline(target: Target) -> None:
    while target.on():
        await target.pour(b"", GET, 8_200_000)
        await target.pause(3)


@attack("pipeline-unread", "8.2 MB of GET / on one connection, answers not read, every 3 s")
async def pipeline_unread(target: Target) -> None:
    while target.on():
        await target.pour(b"", GET, 8_200_000, read=False)
        await target.pause(3)


@attack("header-lines", "24 MB of `a:` lines on one connection, every 3 s")
async def header_lines(target: Target) -> None:
    while target.on():
        await target.pour(b"GET / HTTP/1.1\r\nHost: x\r\n", b"a:\r\n", 24 * MB)
        await target.pause(3)


@attack("headers", "200 MB of headers of 8 kB on one connection, every 5 s")
async def headers(target: Target) -> None:
    while target.on():
        await target.pour(b"GET / HTTP/1.1\r\nHost: x\r\n", b"x-filler: " + b"y" * 8000 + b"\r\n", 200 * MB)
        await target.pause(5)


@attack("url", "an address of 48 MB on one connection, every 3 s")
async def url(target: Target) -> None:
    while target.on():
        await target.pour(b"GET /", b"u" * 4096, 48 * MB, b" HTTP/1.1\r\nHost: x\r\n\r\n")
        await target.pause(3)


@attack("trailers", "24 MB of trailers after a chunked body, every 3 s")
async def trailers(target: Target) -> None:
    start = target.head("POST", "/v1/chat/completions", *CHUNKED) + b"2\r\n{}\r\n0\r\n"
    while target.on():
        await target.pour(start, b"x-trailer: " + b"y" * 500 + b"\r\n", 24 * MB, b"\r\n")
        await target.pause(3)


@attack("chunk-extensions", "a chunk extension of 24 MB, then 24 MB of chunks with 1 kB of extension each, every 3 s")
async def chunk_extensions(target: Target) -> None:
    start = target.head("POST", "/v1/chat/completions", *CHUNKED)
    while target.on():
        await target.pour(start + b"1;", b"e=" + b"y" * 1000 + b";", 24 * MB, b"\r\nx\r\n0\r\n\r\n")
        await target.pour(start, b"1;e=" + b"y" * 1000 + b"\r\n \r\n", 24 * MB, b"0\r\n\r\n")
        await target.pause(3)


@attack("refused-bodies", "a body of 60 MB without a key, every 3 s")
async def refused_bodies(target: Target) -> None:
    start = target.head("POST", "/v1/chat/completions", f"Content-Length: {60 * MB}")
    while target.on():
        await target.pour(start, b"b" * 4096, 60 * MB)
        await target.pause(3)
