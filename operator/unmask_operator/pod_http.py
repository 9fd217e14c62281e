"""Bounded GET requests to engine pods.

Pods are not trusted: their image is the user's choice, and any pod may carry the label. No answer may take more than a
few milliseconds of the operator's event loop, and no pod may delay requests to the pods of other services.
"""

import socket
from collections.abc import Collection
from typing import Any

import aiohttp

from unmask_operator.render.labels import PORT, pod_url

LARGEST_BODY = 256 << 10  # bytes; the runtime's largest answers have a tenth of this size
MAX_CHUNKS = 512  # of a body with chunked transfer coding; the parser needs as long for one as for 1 KiB of body
RECEIVE_BUFFER = 8 << 10  # bytes; limits the input of the parser per callback of the event loop
TIMEOUT_SECONDS = 2.0  # per request
# Limits of concurrent requests: of all services, and per service, so that slow pods delay those of others little.
PODS_AT_ONCE = 32
PODS_PER_SERVICE = 8

HEADERS = {
    "Connection": "close",  # the poll interval is as long as a server's keep-alive timeout
    "Accept-Encoding": "identity",  # the decompressed size of a body is not bounded
}


class PodRequestError(Exception):
    """A pod gave no usable answer. The message is one short clause."""


def pod_session() -> aiohttp.ClientSession:
    """Returns a session for requests to pods. The caller closes it."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=_small_socket)
    return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


def _small_socket(address: Any) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    return made


async def get_text(
    session: aiohttp.ClientSession,
    address: str,
    path: str,
    port: int = PORT,
    timeout: float = TIMEOUT_SECONDS,
    statuses: Collection[int] = (200,),
) -> str:
    """Returns the body of a GET request to a pod.

    Args:
        session: From `pod_session`.
        address: The pod's IPv4 or IPv6 address.
        path: The URL's path.
        port: The pod's port.
        timeout: Seconds for the whole exchange.
        statuses: Accepted HTTP statuses.

    Returns:
        The body. Bytes that are not UTF-8 are replaced.

    Raises:
        PodRequestError: There was no such answer in time, or it is too large.
    """
    try:
        async with session.get(
            pod_url(address, path, port),
            timeout=aiohttp.ClientTimeout(total=timeout),
            allow_redirects=False,
            auto_decompress=False,
            headers=HEADERS,
        ) as answer:
            if answer.status not in statuses:
                raise PodRequestError(f"{path} answered {answer.status}")
            if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise PodRequestError(f"{path} answered with a Content-Encoding")
            return await _read(answer.content, path)
    except TimeoutError:
        raise PodRequestError(f"{path} took longer than {timeout:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: aiohttp cannot parse the answer
        raise PodRequestError(f"{path}: {type(error).__name__}") from error


async def _read(content: aiohttp.StreamReader, path: str) -> str:
    body, chunks = bytearray(), 0
    async for data, ends_chunk in content.iter_chunks():
        body += data
        chunks += ends_chunk
        if len(body) > LARGEST_BODY:
            raise PodRequestError(f"{path} is larger than {LARGEST_BODY >> 10} KiB")
        if chunks > MAX_CHUNKS:
            raise PodRequestError(f"{path} has more than {MAX_CHUNKS} chunks")
    return body.decode(errors="replace")
