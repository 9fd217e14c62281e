"""Reading and decoding a request's body, as far as it may be long. How long it may take is its connection's affair."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import ClientDisconnect, Request

from runtime.errors import RequestError
from runtime.server.content_encoding import decoding
from runtime.server.jobs import ClientGone

MAX_BODY = 2 * 2**20  # bytes


async def read_body(request: Request) -> bytes:
    """The whole body. Raises RequestError 413 past 2 MiB, ClientGone.

    A body that says beforehand that it is too long is not asked for (``Expect: 100-continue``). Whatever of a refused
    body still comes, the connection throws away.
    """
    content_length = request.headers.get("content-length")
    if (
        content_length is not None and int(content_length) > MAX_BODY
    ):  # a number: the connection's parser has seen to that
        raise _too_large()
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > MAX_BODY:
                raise _too_large()
            chunks.append(chunk)
    except ClientDisconnect:
        raise ClientGone from None
    return b"".join(chunks)


async def decode_body(data: bytes, names: Sequence[str]) -> bytes:
    """Returns the body without its content codings, and serves others between steps.

    Args:
        data: The body as it was sent.
        names: The codings as `codings` returns them.

    Raises:
        RequestError: 400 for a body that is not what its header says; 413 once more than 2 MiB are decoded.
    """
    for name in reversed(names):
        output = bytearray()
        for piece in decoding(data, name):
            output += piece
            if len(output) > MAX_BODY:
                raise _too_large()
            await asyncio.sleep(0)
        data = bytes(output)
    return data


def _too_large() -> RequestError:
    message = f"the body has more than {MAX_BODY // 2**20} MiB; send less"
    return RequestError(message, status=413, code="body_too_large")
