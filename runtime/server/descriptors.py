"""How many connections the limit of open files leaves room for."""

from __future__ import annotations

import bisect
import resource

from runtime.errors import ConfigError
from runtime.server.wire.limits import MOST_CONNECTIONS, SPARE_CONNECTIONS, crowd

OWN_FILES = 48  # log, event loop, sockets of ZeroMQ, the tokenizer's files while they are read
BACKEND_FILES = 8  # pipes, sockets and process of each
FEWEST_CONNECTIONS = 16


def open_files(connections: int) -> int:
    """Of so many connections, of newcomers, and of those that give way to them until they are closed."""
    return connections + 2 * crowd(connections)


def raise_open_files_limit(requested: int | None, backends: int) -> int:
    """How many connections there may be: `wanted`, else as many as fit, up to some thousands.

    The limit is raised as far as they need it and the system allows, not to the system's own: that may be a billion,
    and there are programs that go through all descriptors there could be. Raises ConfigError where they do not fit.
    """
    limit = MOST_CONNECTIONS if requested is None else requested
    own = OWN_FILES + BACKEND_FILES * backends + SPARE_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (soft, hard):  # the highest number of all, though written as -1
        hard = 2**31 - 1
        soft = hard if soft == resource.RLIM_INFINITY else soft
    needed = own + open_files(limit)
    if soft < needed and soft < hard:
        soft = min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    fitting = max(bisect.bisect_right(range(limit + 1), soft - own, key=open_files) - 1, 0)
    if requested is not None and fitting < requested:
        raise ConfigError(
            f"--max-connections: {requested} connections and {needed - requested} files of the server exceed the limit "
            f"of {soft} open files; raise the limit (ulimit -n) or set at most {fitting}"
        )
    if fitting < min(FEWEST_CONNECTIONS, limit):
        raise ConfigError(
            f"--max-connections: the server needs {needed - limit} of the {soft} files that it may open, which leaves "
            "too few for connections; raise the limit (ulimit -n)"
        )
    return fitting
