"""Detects closed clients of connections that are not read."""

from __future__ import annotations

import asyncio
import select

_PEER_CLOSED = getattr(select, "POLLRDHUP", 0)  # Linux: the peer has sent its last byte, whether or not it was read


def has_disconnected(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer has closed its side. Always False on systems other than Linux: there, reading detects it."""
    socket = transport.get_extra_info("socket")
    if not _PEER_CLOSED or socket is None or socket.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(socket.fileno(), _PEER_CLOSED)
    return bool(poll.poll(0))
