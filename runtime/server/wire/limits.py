"""What one connection, and all of them together, may take of the server. Bytes and seconds."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.server.middleware.auth import OPEN_PATHS

BACKLOG = 2048  # connections that the kernel holds for us
READ_BYTES = 64 * 2**10  # taken from a socket at once; what has not been parsed yet is never more
MOST_CONNECTIONS = 4096  # without --max-connections, where the descriptor limit leaves as many
SPARE_CONNECTIONS = 32  # beyond the limit, for probes, while every other connection is at work
FEWEST_ENTERING, MOST_ENTERING = 32, 256


def crowd(connections: int) -> int:
    """How many newcomers are let in at once where so many connections may be.

    Under an attack a turn of the event loop may take a tenth of a second. Where few come in in each, the kernel's queue
    fills up, and who finds it full tries again a second later: for a probe that is too late.
    """
    return min(max(connections // 16, FEWEST_ENTERING), MOST_ENTERING)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a server's connections; tests shorten the times."""

    connections: int = MOST_CONNECTIONS
    spare: int = SPARE_CONNECTIONS
    open_paths: frozenset[str] = OPEN_PATHS  # what the spare ones may ask for

    head_bytes: int = 64 * 2**10  # request line, headers and trailers of one request, as received
    headers: int = 256  # header fields and trailers of one request
    chunks: int = 16 * 2**10  # of one chunked body
    queued: int = 8  # requests that wait for the answers before them; a connection with so many is not read on
    buffered_body_bytes: int = 128 * 2**10  # of a body that its route does not take yet
    discard_bytes: int = 64 * 2**20  # of what a refused client still sends, so that it gets to read the answer
    held_bytes: int = 56 * 2**20  # of all connections: unfinished heads and bodies, queued requests, unread answers
    body_weight: float = (
        1.5  # of a byte of an unfinished body: its pieces lie scattered, and twice while they are joined
    )

    head_seconds: float = 30.0  # from accepting, from the head's first byte, or from the answer before it
    body_seconds: float = 30.0  # for the whole body
    idle_seconds: float = 75.0  # between two requests; longer than clients keep theirs, so that they close first
    stall_seconds: float = 60.0  # a client that takes nothing of its answer for so long is given up
    linger_seconds: float = 30.0  # for a refused client to end its request and read the answer
    quiet_seconds: float = 5.0  # one that sends nothing more for so long has read it
    upload_seconds: float = 2.0  # a body that takes longer gives way when there is no room for a new connection
    taking_seconds: float = 5.0  # who took some of an answer so lately does not give way to a new connection
    sweep_seconds: float = 1.0  # how often the times are looked at
