"""Runs a process of the server with time limits that a slow machine does not reach.

The command is ``python -m tests.server.limits ROLE ARGS``. The server starts backends and frontend processes in the
same way. `serving` of the harness starts servers by this module. A test of a limit sets that limit with
`serving(limits={...})`.
"""

import functools
import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from runtime.config import parse
from runtime.errors import ConfigError
from tests.structured_output.slow_grammars import COMPILER

VARIABLE = "TEST_SERVER_LIMITS"  # JSON: limits by their dotted names, which override those below
HOUR = 3600.0
TRIAL_LIMITS = "runtime.structured_output.sandbox.SandboxLimits"
MASK_LIMITS = "runtime.structured_output.grammar_matcher.MaskLimits"

# By the process that they apply to. "frontend" serves HTTP: the server itself, or each frontend process.
RAISED: dict[str, dict[str, Any]] = {
    "server": {
        "runtime.server.engine_client.ipc_protocol.BACKEND_SILENCE_SECONDS": HOUR,
        "runtime.server.engine_client.ipc_protocol.UNRESPONSIVE_SECONDS": HOUR,
        "runtime.server.engine_client.supervisor.EXIT_REASON_SECONDS": 60.0,
        "runtime.server.engine_client.supervisor.STOP_SECONDS": 60.0,
        "runtime.server.metrics.KEPT_SECONDS": 0.0,  # each request for /metrics renders it again
        "runtime.server.metrics._RENDERING": HOUR,
        "runtime.server.metrics.PROCESS_SECONDS": 0.0,
        "runtime.server.frontend_processes.manager.STATS_SECONDS": 60.0,
        "runtime.server.frontend_processes.manager.EXIT_SECONDS": 60.0,
        "runtime.server.frontend_processes.manager.SILENCE_SECONDS": HOUR,
        "runtime.server.frontend_processes.manager.START_SECONDS": HOUR,
    },
    "frontend": {
        "runtime.server.logs.rate_limiter.seconds": HOUR,
        "runtime.server.logs.rate_limiter.limit_per_second": 10_000,
        "runtime.server.http_server.IDLE_GRACE": 0.5,  # unchanged, because each server waits for it when it ends
        "runtime.server.http_server.ERROR_WRITE_SECONDS": 60.0,
        "runtime.server.middleware.tracing.CLOSING_SECONDS": 60.0,
    },
    "backend": {"runtime.executor.monitor.SILENCE_SECONDS": 60.0,
                "runtime.server.engine_client.ipc_protocol.FRONTEND_SILENCE_SECONDS": HOUR,
                "runtime.server.engine_process.channel.REASON_SECONDS": 60.0},
}  # fmt: skip
TRIALS = {"compile_seconds": 120.0, "translate_seconds": 60.0, "answer_seconds": HOUR, "start_seconds": HOUR}
MASKS = {"seconds": HOUR, "token_seconds": 0.0}
CONNECTIONS = {
    "head_seconds": 300.0, "body_seconds": 300.0, "idle_seconds": 300.0, "stall_seconds": 300.0, "drain_seconds": 300.0,
    "quiet_seconds": 60.0,
}  # fmt: skip


def raise_limits(role: str) -> None:
    """Sets the limits of this process. This imports the modules that define them."""
    chosen = {**RAISED[role], **{n: v for n, v in _overridden().items() if n in RAISED[role]}}
    for path, value in chosen.items():
        owner, _, name = path.rpartition(".")
        setattr(_find(owner), name, value)


def _overridden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(os.environ.get(VARIABLE, "{}"))
    known = {path for limits in RAISED.values() for path in limits} | {f"{TRIAL_LIMITS}.{name}" for name in TRIALS}
    known |= {f"{MASK_LIMITS}.{name}" for name in MASKS}
    assert found.keys() <= known, f"{VARIABLE}: {found.keys() - known} are not limits of any process"
    return found


def _find(path: str) -> Any:
    """Returns the module, or the object in a module, with this dotted path."""
    try:
        return import_module(path)
    except ModuleNotFoundError:
        owner, _, name = path.rpartition(".")
        return getattr(import_module(owner), name)


def command(role: str) -> tuple[str, ...]:
    return sys.executable, "-m", "tests.server.limits", role


def serve(backend_command: tuple[str, ...]) -> int:
    """Runs `runtime.server` with raised limits over backends of this command, and returns the exit code."""
    try:
        config = parse(sys.argv[1:], os.environ)
        from runtime.server import launcher
        from runtime.server.frontend_processes import manager

        raise_limits("server")
        manager.COMMAND = command("frontend")
        _raise_when_imported(launcher.Server)
        return launcher.run(config, backend_command)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def run(module: str, load_engine: Any, **options: Any) -> int:
    """Runs a backend with this engine if the arguments are those of a backend, and otherwise a server over `module`."""
    if "--command-addr" not in sys.argv:
        return serve((sys.executable, "-m", module))
    from runtime.server.engine_process import backend

    raise_limits("backend")
    return backend.main(load_engine, **options)


def _raise_when_imported(server: Any) -> None:
    """Raises the limits of HTTP when the server makes its frontend.

    Only then, while the backends load, the server imports the HTTP modules.
    """
    make_frontend = server._make_frontend

    def make(self: Any) -> Any:
        if self.config.frontend_processes == 1:
            raise_http_limits()
        return make_frontend(self)

    server._make_frontend = make


def raise_http_limits() -> None:
    from runtime.server import http_server
    from runtime.structured_output import sandbox

    raise_limits("frontend")
    sandbox.COMMAND = COMPILER
    http_server.Limits = functools.partial(http_server.Limits, **CONNECTIONS)  # type: ignore[assignment, misc]
    trial_limits = {name: _overridden().get(f"{TRIAL_LIMITS}.{name}", value) for name, value in TRIALS.items()}
    sandbox.SandboxLimits = functools.partial(sandbox.SandboxLimits, **trial_limits)  # type: ignore[assignment, misc]


def _backend() -> int:
    from runtime.server.engine_process import backend
    from runtime.structured_output import grammar_matcher

    raise_limits("backend")
    mask_limits = {name: _overridden().get(f"{MASK_LIMITS}.{name}", value) for name, value in MASKS.items()}
    grammar_matcher.MaskLimits = functools.partial(grammar_matcher.MaskLimits, **mask_limits)  # type: ignore[assignment, misc]
    return backend.main()


def _frontend() -> int:
    from runtime.server.frontend_processes import process

    raise_http_limits()
    return process.main()


ROLES: dict[str, Callable[[], int]] = {
    "server": lambda: serve(command("backend")),
    "backend": _backend,
    "frontend": _frontend,
}

if __name__ == "__main__":
    sys.exit(ROLES[sys.argv.pop(1)]())
