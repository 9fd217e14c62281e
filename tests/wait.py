"""Functions that wait for a condition. Tests use only these to wait for asynchronous events."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

TIMEOUT = 180.0  # seconds: on an overloaded machine a condition may take a hundred times its usual time
INTERVAL = 0.02  # seconds between two polls


def wait_until(
    condition: Callable[[], T],
    message: str = "",
    *,
    timeout: float = TIMEOUT,
    interval: float = INTERVAL,
    ignore: type[BaseException] | tuple[type[BaseException], ...] = (),
) -> T:
    """Polls `condition` until it returns a true value, and returns that value.

    Args:
        condition: Called without arguments. It must not block for long.
        message: Name of the condition for the error message.
        timeout: Seconds until the wait fails. Raise it if the work itself takes long; do not lower it.
        interval: Seconds between two polls.
        ignore: Exceptions of `condition` that count as "not yet".

    Raises:
        TimeoutError: The condition did not hold within `timeout`. Its cause is the last ignored exception, if any.
    """
    deadline = time.monotonic() + timeout
    while True:
        ignored: BaseException | None = None
        try:
            if result := condition():
                return result
        except ignore as error:
            ignored = error
        if time.monotonic() > deadline:
            raise TimeoutError(f"{message or condition}: not within {timeout:g} s") from ignored
        time.sleep(interval)


async def wait_until_async(
    condition: Callable[[], T | Awaitable[T]],
    message: str = "",
    *,
    timeout: float = TIMEOUT,
    interval: float = INTERVAL,
) -> T:
    """`wait_until` on an event loop: other tasks run between two polls. `condition` may return an awaitable.

    Raises:
        TimeoutError: The condition did not hold within `timeout`.
    """
    deadline = time.monotonic() + timeout
    while True:
        result = condition()
        value = await result if isinstance(result, Awaitable) else result
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"{message or condition}: not within {timeout:g} s")
        await asyncio.sleep(interval)
