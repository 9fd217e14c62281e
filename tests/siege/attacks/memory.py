"""Attacks that send more than any request needs: pipelines, headers, addresses, trailers, chunk extensions."""

from tests.siege.registry import attack
from tests.siege.target import Target

MB = 1_000_000
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
# Name: what it is, seconds between two of them, the beginning of a request, a piece, how many bytes of it, the end.
FLOODS: dict[str, tuple[str, float, bytes, bytes, int, bytes]] = {
    "pipeline": ("8.2 MB of GET /, answers read", 3, b"", GET + b"\r\n", 8 * MB, b""),
    "header-lines": ("4 MB of `a:` lines", 3, GET, b"a:\r\n", 4 * MB, b""),
    "headers": ("200 MB of headers of 8 kB", 5, GET, b"x-filler: " + b"y" * 8000 + b"\r\n", 200 * MB, b""),
    "url": ("an address of 48 MB", 3, b"GET /", b"u" * 4096, 48 * MB, b" HTTP/1.1\r\nHost: x\r\n\r\n"),
}
CHAT = ("POST", "/v1/chat/completions")
CHUNKED = ("Content-Type: application/json", "Transfer-Encoding: chunked")
# The same, after the head of a request with these headers.
BODIES: dict[str, tuple[str, tuple[str, ...], bytes, bytes, int, bytes]] = {
    "trailers": ("4 MB of trailers", CHUNKED, b"2\r\n{}\r\n0\r\n", b"x-t: " + b"y" * 500 + b"\r\n", 4 * MB, b"\r\n"),
    "chunk-extension": ("an extension of 24 MB", CHUNKED, b"1;", b"e=" + b"y" * 1000 + b";", 24 * MB, b"\r\nx\r\n"),
    "chunk-extensions": ("24 MB of extensions", CHUNKED, b"", b"1;e=" + b"y" * 1000 + b"\r\n \r\n", 24 * MB, b""),
    "refused-bodies": ("a body of 60 MB without a key", ("Content-Length: 60000000",), b"", b"b" * 4096, 60 * MB, b""),
}


def _register(name: str, what: str, pause: float, start: bytes, piece: bytes, size: int, end: bytes) -> None:
    async def flood(target: Target) -> None:
        while target.on():
            await target.pour(start, piece, size, end)
            await target.pause(pause)

    attack(name, f"{what} on one connection, every {pause:g} s")(flood)


for _name, _flood in FLOODS.items():
    _register(_name, *_flood)
for _name, (_what, _headers, _start, _piece, _size, _end) in BODIES.items():
    _register(_name, _what, 3, Target(0, None, 0.0, bool).head(*CHAT, *_headers) + _start, _piece, _size, _end)


@attack("pipeline-unread", "8.2 MB of GET / on one connection, answers not read, every 3 s")
async def pipeline_unread(target: Target) -> None:
    while target.on():
        await target.pour(b"", GET + b"\r\n", 8 * MB, read=False)
        await target.pause(3)
