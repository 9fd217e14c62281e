"""Codings of request bodies (``Content-Encoding``), decoded in steps of limited size."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial

from runtime.errors import RequestError
from runtime.request.validation import preview, refuse

CONTENT_ENCODING = "Content-Encoding"
MAX_CODINGS = 4  # of one body
MAX_FRAMES = 128  # gzip members or zstd frames of one body: each has to set up a decoder
ZSTD_WINDOW_LOG = 23  # of zstd: 8 MiB, which RFC 8878 recommends as the limit
DECODED_STEP_BYTES = 2**16
# Input of zstd that is decoded at once. A block takes at least 4 bytes and makes at most 128 KiB of them (RFC 8878), so
# that a slice makes at most 8 MiB.
ZSTD_INPUT_BYTES = 2**8

_Stream = Callable[[memoryview], Generator[bytes, None, int]]


def codings(values: Iterable[str]) -> list[str]:
    """Returns the codings in the order in which they were applied.

    Args:
        values: Those of all `Content-Encoding` headers of a request.

    Raises:
        RequestError: 415 for a coding that the server does not decode, or too many of them.
    """
    names = [name.strip().lower() for value in values for name in value.split(",")]
    found = [name.removeprefix("x-") for name in names if name not in ("", "identity")]
    for name in found:
        if name not in DECODERS:
            known = ", ".join(DECODERS)
            raise _unsupported(f"{preview(name)} is not supported; use {known}, or send the body without it")
    if len(found) > MAX_CODINGS:
        raise _unsupported(f"names {len(found)} codings; at most {MAX_CODINGS}")
    return found


def decoding(data: bytes, coding: str) -> Iterator[bytes]:
    """Yields the decoded bytes of one coding in pieces of at most `DECODED_STEP_BYTES`, some of them empty.

    Raises:
        RequestError: 400 for data that is malformed, incomplete, or followed by other data.
    """
    try:
        if not data:
            raise ValueError("it is empty")
        yield from DECODERS[coding](data)
    except (ValueError, zlib.error) as error:
        reason = " ".join(str(error).split())[:200]
        sentence = f"the body cannot be decoded as {coding}: {reason}"
        raise refuse(CONTENT_ENCODING, sentence, code="invalid_encoding") from None


def _deflate(data: bytes) -> Iterator[bytes]:
    """zlib's format (RFC 1950) as the coding is defined, or, as some clients send it, deflate's alone (RFC 1951)."""
    header = int.from_bytes(data[:2], "big")
    wrapped = data[0] & 15 == 8 and header % 31 == 0
    size = yield from _inflate(memoryview(data), 15 if wrapped else -15)
    if size < len(data):
        raise ValueError("other data follows it")


def _frames(data: bytes, stream: _Stream) -> Iterator[bytes]:
    """Yields the output of streams that follow each other."""
    view = memoryview(data)
    for _ in range(MAX_FRAMES):
        size = yield from stream(view)
        view = view[size:]
        if not view:
            return
    raise ValueError(f"it has more than {MAX_FRAMES} parts")


def _inflate(data: memoryview, wbits: int) -> Generator[bytes, None, int]:
    """Yields the output of one zlib stream; returns its size."""
    stream = zlib.decompressobj(wbits)
    for start in range(0, len(data), DECODED_STEP_BYTES):
        piece = bytes(data[start : start + DECODED_STEP_BYTES])
        end = start + len(piece)
        size = DECODED_STEP_BYTES
        while piece or size == DECODED_STEP_BYTES:  # after a full step more output may be pending
            output = stream.decompress(piece, DECODED_STEP_BYTES)
            size = len(output)
            yield output
            if stream.eof:
                return end - len(stream.unused_data)
            piece = stream.unconsumed_tail
    raise ValueError("it is incomplete")


def _decompress(data: memoryview) -> Generator[bytes, None, int]:
    """Yields the output of one zstd frame; returns its size."""
    import zstandard  # few clients use it, and a frontend that has none of them saves the memory

    stream = zstandard.ZstdDecompressor(max_window_size=2**ZSTD_WINDOW_LOG).decompressobj()
    output = bytearray()
    try:
        for start in range(0, len(data), ZSTD_INPUT_BYTES):
            piece = bytes(data[start : start + ZSTD_INPUT_BYTES])
            output += stream.decompress(piece)
            if len(output) >= DECODED_STEP_BYTES or start % DECODED_STEP_BYTES == 0 or stream.eof:
                yield from (
                    bytes(output[at : at + DECODED_STEP_BYTES]) for at in range(0, len(output) or 1, DECODED_STEP_BYTES)
                )
                output.clear()
            if stream.eof:
                return start + len(piece) - len(stream.unused_data)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
    raise ValueError("it is incomplete")


def _unsupported(sentence: str) -> RequestError:
    return refuse(CONTENT_ENCODING, sentence, status=415, code="unsupported_encoding")


DECODERS: dict[str, Callable[[bytes], Iterator[bytes]]] = {
    "gzip": lambda data: _frames(data, partial(_inflate, wbits=31)),
    "deflate": _deflate,
    "zstd": lambda data: _frames(data, _decompress),
}
