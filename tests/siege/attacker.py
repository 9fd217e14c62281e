"""Runs one attack in a separate process."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import resource
import time
from collections.abc import Callable
from typing import Any

from tests.siege.registry import Attack, by_name
from tests.siege.target import Target

EXIT_SECONDS = 45.0  # seconds after its time in which an attack may end by itself


def attacker(
    stopped: Callable[[], bool],
    report: Callable[[Any], None],
    module: str,
    name: str,
    port: int,
    key: str | None,
    seconds: float,
    pause_factor: float,
) -> dict[str, Any]:
    _raise_limit()
    importlib.import_module(module)  # registers the attack
    report("attacking")
    target = Target(port, key, time.monotonic() + seconds, stopped, pause_factor)
    asyncio.run(_run(by_name(name), target))
    return {"did": dict(target.did), "broken": target.broken}


async def _run(attack: Attack, target: Target) -> None:
    task = asyncio.create_task(attack.run(target))
    await asyncio.wait([task], timeout=target.left() + EXIT_SECONDS)
    if not task.done():
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _raise_limit() -> None:
    """Raises the limit of open files, because each of thousands of connections needs a descriptor."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
