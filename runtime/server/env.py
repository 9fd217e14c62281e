"""The environment and limits of processes: variables that the server sets and passes on, and open files."""

from __future__ import annotations

import bisect
import os
import resource
import sys

from runtime.config.flags import ENV_PREFIX, KERNEL_CACHE
from runtime.errors import ConfigError
from runtime.server.http_protocol.limits import DEFAULT_MAX_CONNECTIONS, PROBE_SLOTS, accept_batch
from runtime.server.http_protocol.malloc_trim import use_one_arena

# Variables in which huggingface_hub and its elders find a token.
HUB_TOKENS = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HUGGINGFACE_TOKEN"})


LOCK_SECONDS = 0.0005  # after which a thread that computes lets another have the interpreter's lock


def configure_process() -> None:
    """Configures this process. Call it before the tokenizers library is loaded, and before threads start.

    Batch calls of that library, the only ones that release the GIL, would otherwise start a thread per core.

    The event loop releases the lock in every system call, some ten per request, and gets it back when another thread
    releases it. With Python's default of 5 ms each time, a template that another thread renders would delay all
    requests for seconds.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.setswitchinterval(LOCK_SECONDS)
    use_one_arena()


_TRACES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def traces_endpoint() -> str | None:
    """Returns the variable with the endpoint of traces; None if traces are off. OpenTelemetry reads the others."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if os.environ.get("OTEL_TRACES_EXPORTER", "").strip() == "none":
        return None
    return next((name for name in _TRACES if os.environ.get(name)), None)


def traces_protocol() -> str:
    """Returns the configured OTLP protocol, "" by default."""
    return next((os.environ[name].strip() for name in _PROTOCOLS if os.environ.get(name)), "")


def backend_environment(model: str | None, *, fetches: bool = False) -> dict[str, str]:
    """Returns the environment of a backend: that of this process without its secrets.

    A backend gets its configuration in a message. It needs no variables of the server, such as keys, and a hub token
    only to download a model or adapters (`fetches`). The frontend exports traces.
    """
    hub = fetches or (model is not None and model.startswith("hf://"))
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name == KERNEL_CACHE or (not name.startswith((ENV_PREFIX, "OTEL_")) and (hub or name not in HUB_TOKENS))
    }
    return {"OMP_WAIT_POLICY": "PASSIVE", **inherited, "PYTHONUNBUFFERED": "1"}  # see `runtime.wait_passively`


OWN_FILES = 48  # log, event loop, sockets of ZeroMQ, the tokenizer's files while they are read
BACKEND_FILES = 8  # pipes, sockets and process of each
FEWEST_CONNECTIONS = 16


def open_files(connections: int) -> int:
    """Returns the number of files for `connections`, for new ones, and for evicted ones until they are closed."""
    return connections + 2 * accept_batch(connections)


def raise_open_files_limit(requested: int | None, backends: int) -> int:
    """Returns the limit of connections: `requested`, or as many as fit, up to `DEFAULT_MAX_CONNECTIONS`.

    The limit of open files is raised as far as needed and possible. It is not raised to the system's limit, which may
    be a billion: some programs iterate over all possible descriptors. Raises ConfigError if the connections do not fit.
    """
    limit = DEFAULT_MAX_CONNECTIONS if requested is None else requested
    own = OWN_FILES + BACKEND_FILES * backends + PROBE_SLOTS
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
