"""A decorator for tests that are coroutines."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs the test on an event loop of asyncio."""

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        asyncio.run(test(*args, **fixtures))

    return run


def on_uvloop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs the test on the event loop of the server."""

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        uvloop.run(test(*args, **fixtures))

    return run
