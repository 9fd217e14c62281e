"""Work beside the event loop: two threads, one for what is short and one for what may take seconds.

Python's threads share one lock: what runs here must give it up, as the tokenizers library's batch calls do, or be made
of small steps, as a template is. Work that nobody waits for any more loses its place, or ends at its next step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import Request

from runtime.server.jobs import ClientGone, disconnected
from runtime.server.keys import api_key_id
from runtime.server.line import AdmissionQueue

LONG = 2**16  # characters from which work waits among the long
MAX_WAITING_CHARS = 2**23  # characters that wait for a lane, together: they are memory

T = TypeVar("T")
Work = Callable[[Callable[[], bool]], T]  # is given what tells whether it is still wanted


class SingleThreadExecutor:
    """One thread, and the line before it."""

    def __init__(self, name: str, what: str = "long prompts are being prepared", per_owner: int | None = None) -> None:
        """Creates an idle thread. `what`, `per_owner`: see `Line`."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._line = AdmissionQueue(MAX_WAITING_CHARS, what, per_owner)

    async def run(self, size: int, work: Work[T], owner: str = "") -> T:
        """What `work` returns. Raises RequestError 429 where too much waits; cancelled, it gives up its place."""
        await self._line.acquire(size, owner)
        needed = True
        done = asyncio.get_running_loop().run_in_executor(self._thread, work, lambda: needed)
        done.add_done_callback(self._ended)
        try:
            return await asyncio.shield(done)
        finally:
            needed = False

    def _ended(self, done: asyncio.Future[Any]) -> None:
        if not done.cancelled():
            done.exception()  # looked at, though its client may be gone
        self._line.release()


class PreprocessingExecutors:
    """The two threads of a server."""

    def __init__(self) -> None:
        self._short, self._long = SingleThreadExecutor("short"), SingleThreadExecutor("long")

    async def run(self, request: Request, size: int, work: Work[T]) -> T:
        """`work` of about `size` characters in its lane. Raises ClientGone once nobody waits for the answer."""
        executor = self._long if size > LONG else self._short
        return await cancel_on_disconnect(request, executor.run(size, work, api_key_id(request)))


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns; it is cancelled when the client goes away. Raises ClientGone."""
    working, watching = asyncio.create_task(work), asyncio.create_task(disconnected(request.receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        # an error holds the frames of the work, with its body, and this one: which must not hold the error in a circle
        del working, watching
