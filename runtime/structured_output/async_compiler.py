"""Compiles grammars of requests in a background thread, one at a time, while other requests run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from runtime.structured_output.grammar_cache import GrammarCache, GrammarError
from runtime.structured_output.grammar_matcher import GrammarMatcher
from runtime.structured_output.service_time import ServiceTime

T = TypeVar("T")


@dataclass(frozen=True)
class _Job(Generic[T]):
    item: T
    tenant: str
    text: str
    future: Future[GrammarMatcher]


class GrammarCompiler(Generic[T]):
    """Compiles the grammars of requests in one thread. Tenants get equal time of the thread."""

    def __init__(self, grammars: GrammarCache) -> None:
        self._grammars = grammars
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._waiting: dict[str, _Job[T]] = {}
        self._lock = threading.Lock()  # guards `_queued` and `_used`
        self._queued: dict[str, dict[str, _Job[T]]] = {}  # jobs that have not begun, by tenant and name
        self._used = ServiceTime()

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, name: str, item: T, text: str, tenant: str = "") -> GrammarMatcher | None:
        """Returns a matcher for the grammar of a request, or queues the grammar for compilation.

        Args:
            name: Name of the request.
            item: Object that `poll` yields for the request.
            text: The grammar.
            tenant: API key whose time the compilation counts against.

        Returns:
            A matcher if the grammar is cached. None if it has to be compiled: `poll` yields `item` when it is ready.
        """
        job = _Job(item, tenant, text, Future())
        try:
            known = self._grammars.get(text)
        except GrammarError as error:
            self._waiting[name] = job
            job.future.set_exception(error)
            return None
        if known is None:
            self._waiting[name] = job
            with self._lock:
                if tenant not in self._queued:
                    self._used.join(tenant, self._queued)
                self._queued.setdefault(tenant, {})[name] = job
            self._thread.submit(self._compile_next)
        return known

    def cancel(self, name: str) -> T | None:
        """Removes a waiting request; returns its item, or None if there is none of that name."""
        job = self._waiting.pop(name, None)
        if job is None:
            return None
        with self._lock:
            self._unqueue(name, job.tenant)
        return job.item

    def poll(self, seconds: float = 0.0) -> Iterator[tuple[T, GrammarMatcher | BaseException]]:
        """Yields compiled items, each with its matcher or error. Waits up to `seconds` for the first."""
        if not self._waiting:
            return
        wait([job.future for job in self._waiting.values()], seconds, FIRST_COMPLETED)
        for name, job in list(self._waiting.items()):
            if job.future.done():
                del self._waiting[name]
                error = job.future.exception()
                yield job.item, job.future.result() if error is None else error

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _unqueue(self, name: str, tenant: str) -> None:
        jobs = self._queued.get(tenant, {})
        jobs.pop(name, None)
        if not jobs:
            self._queued.pop(tenant, None)

    def _compile_next(self) -> None:
        """Compiles the next grammar of the tenant that has used the least time."""
        with self._lock:
            if not self._queued:
                return  # canceled
            tenant = min(self._queued, key=self._used.__getitem__)
            name, job = next(iter(self._queued[tenant].items()))
            self._unqueue(name, tenant)
            self._used.begin(tenant)
        began = time.perf_counter()
        try:
            job.future.set_result(self._grammars.compile(job.text, "structured_outputs"))
        except BaseException as error:
            job.future.set_exception(error)
        with self._lock:
            self._used.end(tenant, time.perf_counter() - began, idle=not self._queued)
