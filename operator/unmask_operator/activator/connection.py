"""Handles one connection of a client: holds its request, then copies bytes between the client and a pod."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any

from unmask_operator.activator.head import Refusal, error_answer, own_answer, read_head
from unmask_operator.activator.holder import LONGEST_ANSWER_SECONDS, Address, Holder
from unmask_operator.activator.metrics import Metrics

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

HELD_BYTES = 16 << 10  # of a body that are read while the request waits; the rest stays in the socket
CHUNK = 64 << 10  # bytes
CONNECT_SECONDS = 5.0
RETRY_SECONDS = 0.1
LINGER_SECONDS = 5.0  # for a client that still sends, or reads slowly, at the end


async def serve(holder: Holder, metrics: Metrics, client: Streams) -> None:
    """Answers the request of a connection, or copies the connection to a pod. Closes it in any case."""
    reader, writer = client
    labels = holder.target.key
    try:
        try:
            head = await read_head(reader)
            if head is None:
                return
            found = own_answer(head, holder.target)
            if found is None:
                await _forward(holder, metrics, client, head.received)
                return
        except Refusal as refusal:
            metrics.refused.labels(*labels, refusal.reason).inc()
            found = error_answer(refusal)
        writer.write(found)
        await _end(reader, writer)
    except OSError:
        pass  # the client or the pod closed the connection
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                await writer.wait_closed()
        writer.transport.abort()


async def _forward(holder: Holder, metrics: Metrics, client: Streams, received: bytes) -> None:
    """Holds the request, and then copies its connection to a pod.

    A pod that refuses the connection was removed in the meantime, and the request waits again.

    Raises:
        Refusal: no pod took the request in time.
    """
    start, seconds = time.monotonic(), holder.target.zero.hold_seconds
    held = bytearray(received)
    while request := await _wait(holder, client[0], held, start + seconds):
        pod = request.result()
        try:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    server = await asyncio.open_connection(*pod, limit=CHUNK)
            except OSError:
                holder.failed(pod)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            metrics.hold_seconds.labels(*holder.target.key).observe(time.monotonic() - start)
            server[1].write(held)
            held.clear()
            await _join(client, server, functools.partial(holder.answered, request))
            return
        finally:
            holder.closed(request)


async def _wait(
    holder: Holder, reader: asyncio.StreamReader, held: bytearray, end: float
) -> asyncio.Future[Address] | None:
    """Returns the request once it is released to a pod; None if the client left.

    Raises:
        Refusal: none took it until `end`, or too many requests wait.
    """
    request = holder.hold()
    filling = asyncio.create_task(_fill(reader, held))
    try:
        await asyncio.wait((request, filling), timeout=end - time.monotonic(), return_when=asyncio.FIRST_COMPLETED)
        if request.done() and request.result():  # raises the refusal of a service that was stopped
            return request
        if filling.done():
            return filling.result()
        raise Refusal(503, "timeout", f"no pod was Ready within {holder.target.zero.hold_seconds} s")
    finally:
        request.cancel()
        await _cancel(filling)


async def _fill(reader: asyncio.StreamReader, held: bytearray) -> None:
    """Reads the start of the body until `HELD_BYTES`. Returns when the client has left."""
    while more := await reader.read(HELD_BYTES):
        held += more
        if len(held) >= HELD_BYTES:
            await asyncio.Event().wait()  # until it is cancelled


async def _join(client: Streams, server: Streams, answered: Callable[[], None]) -> None:
    """Copies bytes in both directions until the pod or the client has ended.

    Args:
        client: the streams of the client.
        server: the streams of the pod.
        answered: called with the first byte of the answer, or earlier if there is none for long.
    """
    timer = asyncio.get_running_loop().call_later(LONGEST_ANSWER_SECONDS, answered)
    upward = asyncio.create_task(_copy(client[0], server[1], lambda: None))
    downward = asyncio.create_task(_copy(server[0], client[1], answered))
    try:
        await asyncio.wait((upward, downward), return_when=asyncio.FIRST_COMPLETED)
        if not downward.done() and not upward.exception():
            await asyncio.wait((downward,))  # the client has sent all that it sends, and reads the answer
    finally:
        timer.cancel()
        await _cancel(upward, downward)
        server[1].transport.abort()
        if downward.cancelled() or downward.exception():  # the answer is not complete
            client[1].transport.abort()


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancels tasks and waits for them. Their errors are those of closed connections."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(source: asyncio.StreamReader, drain: asyncio.StreamWriter, began: Callable[[], None]) -> None:
    while data := await source.read(CHUNK):
        began()
        drain.write(data)
        await drain.drain()
    if drain.can_write_eof():
        drain.write_eof()


async def _end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends the answer, and reads what the client still sends, because an unread body would reset the connection."""
    await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while await reader.read(CHUNK):
                pass
