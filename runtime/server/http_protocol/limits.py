"""Limits of one connection and of all connections. Sizes are in bytes, times in seconds."""

from __future__ import annotations

from dataclasses import dataclass

OPEN_PATHS = frozenset({"/health", "/ready", "/startup", "/metrics"})  # probes and scrapers have no key
BACKLOG = 2048  # connections that the kernel holds until they are accepted
DEFAULT_MAX_CONNECTIONS = 4096  # without --max-connections, if the limit of open files allows it
PROBE_SLOTS = 32  # connections beyond the limit, for probes of a full server
MIN_ACCEPT_BATCH, MAX_ACCEPT_BATCH = 32, 256


def accept_batch(connections: int) -> int:
    """Number of connections that may be registered with the event loop at the same time.

    Under an attack, one iteration of the event loop may take a tenth of a second. With a small batch, the kernel's
    queue overflows and a client retries after a second, which is too long for a probe.

    Args:
        connections: The limit of connections.
    """
    return min(max(connections // 16, MIN_ACCEPT_BATCH), MAX_ACCEPT_BATCH)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server's connections. Tests shorten the times."""

    connections: int = DEFAULT_MAX_CONNECTIONS
    probe_slots: int = PROBE_SLOTS
    probe_paths: frozenset[str] = OPEN_PATHS  # what connections in these slots may request

    head_bytes: int = 64 * 2**10  # request line and headers; also the trailers, or a chunk's header
    headers: int = 256  # header fields of one request, and its trailer fields
    chunks: int = 16 * 2**10  # of one chunked body
    discard_bytes: int = 64 * 2**20  # received after the last response, so that the client can read that response
    buffered_bytes: int = 56 * 2**20  # of all connections: incomplete requests, pipelined requests, unsent responses
    body_weight: float = 1.5  # per byte of an incomplete body: its pieces exist twice while they are joined

    head_seconds: float = 30.0  # from accepting, from the head's first byte, or from the previous response
    body_seconds: float = 30.0  # for the complete body
    idle_seconds: float = 75.0  # between two requests; longer than clients keep a connection, so that they close first
    age_seconds: float = 0.0  # from accepting, after which the answer to a new request closes the connection; 0: never
    stall_seconds: float = 60.0  # without progress of an unsent response
    drain_seconds: float = 30.0  # for a rejected client to finish its request and read the response
    quiet_seconds: float = 5.0  # without data from a rejected client, after which it has read the response
    arrival_seconds: float = 1.0  # from accepting until the first bytes, in which a new connection may be a probe's
    upload_seconds: float = 2.0  # after which an incomplete body may be evicted for a new connection
    progress_seconds: float = 5.0  # since the last progress of a response, in which it is not evicted
    check_seconds: float = 1.0  # interval of the checks of these times
