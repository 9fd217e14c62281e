"""How many connections the limit of open files leaves room for."""

from __future__ import annotations

import bisect
import resource

from runtime.errors import ConfigError
from runtime.server.http_protocol.limits import DEFAULT_MAX_CONNECTIONS, PROBE_SLOTS, accept_batch

OWN_FILES = 48  # log, event loop, sockets of ZeroMQ, the tokenizer's files while they are read
BACKEND_FILES = 8  # pipes, sockets and process of each
FEWEST_CONNECTIONS = 16


def files(connections: int) -> int:
    """Of so many connections, of newcomers, and of those that give way to them until they are closed."""
    return connections + 2 * accept_batch(connections)


def make_room(wanted: int | None, backends: int) -> int:
    """How many connections there may be: `wanted`, else as many as fit, up to some thousands.

    The limit is raised as far as they need it and the system allows, not to the system's own: that may be a billion,
    and there are programs that go through all descriptors there could be. Raises ConfigError where they do not fit.
    """
    most = DEFAULT_MAX_CONNECTIONS if wanted is None else wanted
    own = OWN_FILES + BACKEND_FILES * backends + PROBE_SLOTS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (soft, hard):  # the highest number of all, though written as -1
        hard = 2**31 - 1
        soft = hard if soft == resource.RLIM_INFINITY else soft
    needed = own + files(most)
    if soft < needed and soft < hard:
        soft = min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    room = max(bisect.bisect_right(range(most + 1), soft - own, key=files) - 1, 0)
    if wanted is not None and room < wanted:
        raise ConfigError(
            f"--max-connections: {wanted} and {needed - wanted} files of the server's own do not fit the limit of "
            f"{soft} open files; raise that (ulimit -n) or take at most {room}"
        )
    if room < min(FEWEST_CONNECTIONS, most):
        raise ConfigError(
            f"--max-connections: the limit of {soft} open files leaves no room for connections beside "
            f"{needed - most} files of the server's own; raise it (ulimit -n)"
        )
    return room
