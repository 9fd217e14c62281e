"""Whether a client has gone: of a connection that is not being read, whose end therefore nobody would see."""

from __future__ import annotations

import asyncio
import select

_ENDED = getattr(select, "POLLRDHUP", 0)  # Linux's: the other side has sent its last byte, read or not


def departed(transport: asyncio.Transport) -> bool:
    """Elsewhere than on Linux never: there it is seen once the connection is read again or written to."""
    socket = transport.get_extra_info("socket")
    if not _ENDED or socket is None or socket.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(socket.fileno(), _ENDED)
    return bool(poll.poll(0))
