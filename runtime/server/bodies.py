"""Reading a request's body, as far as it may be long. How long it may take is its connection's affair."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from runtime.errors import RequestError
from runtime.server.jobs import ClientGone

MAX_BODY = 2 * 2**20  # bytes


async def read_body(request: Request) -> bytes:
    """The whole body. Raises RequestError 413 past 2 MiB, ClientGone.

    A body that says beforehand that it is too long is not asked for (``Expect: 100-continue``). Whatever of a refused
    body still comes, the connection throws away.
    """
    told = request.headers.get("content-length")
    if told is not None and int(told) > MAX_BODY:  # a number: the connection's parser has seen to that
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


def _too_large() -> RequestError:
    message = f"the body has more than {MAX_BODY // 2**20} MiB; send less"
    return RequestError(message, status=413, code="body_too_large")
