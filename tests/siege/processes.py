"""Child processes of the siege, which run a function until they are stopped and report their CPU seconds."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

_SPAWN = multiprocessing.get_context("spawn")


class Child:
    """Runs ``function(stopped, report, *args)`` in a process. The function returns soon after `stopped()` is true.

    A `nice` above 0 yields the CPU to the server, because the server is measured and not the attacker's use of CPU.
    """

    def __init__(self, function: Callable[..., Any], *args: Any, nice: int = 0) -> None:
        self.name = function.__name__
        self.event = _SPAWN.Event()
        self.results, theirs = _SPAWN.Pipe(duplex=False)
        # a daemon ends with this process in any case
        self.process = _SPAWN.Process(target=_run, args=(theirs, self.event, nice, function, args), daemon=True)
        self.process.start()
        theirs.close()
        self.first: Any = None

    def ready(self, seconds: float = 30.0) -> Any:
        """Waits for the value that the function reports when it has started (``report`` is its second argument)."""
        if not self.results.poll(seconds):
            raise RuntimeError(f"{self.name}: did not start within {seconds:.0f} s")
        return self.results.recv()

    @property
    def alive(self) -> bool:
        return self.process.is_alive() and not self.results.poll(0)

    def finish(self, seconds: float = 60.0) -> tuple[Any, float]:
        """Stops the function. Returns its result and its CPU seconds, or raises RuntimeError with its failure."""
        self.event.set()
        try:
            if not self.results.poll(seconds):
                raise RuntimeError(f"{self.name}: did not stop within {seconds:.0f} s")
            failure, result, cpu = self.results.recv()
        except EOFError:
            raise RuntimeError(f"{self.name}: its process ended with {self.process.exitcode}") from None
        finally:
            self.kill()
        if failure is not None:
            raise RuntimeError(f"{self.name}: {failure}")
        return result, cpu

    def kill(self) -> None:
        self.process.join(1)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.results.close()


@contextlib.contextmanager
def children() -> Iterator[Callable[..., Child]]:
    """Yields a function that starts a child, with the arguments of `Child`. All children are ended at the exit."""
    started: list[Child] = []

    def start(function: Callable[..., Any], *args: Any, nice: int = 0) -> Child:
        started.append(Child(function, *args, nice=nice))
        return started[-1]

    try:
        yield start
    finally:
        for child in started:
            child.event.set()
        for child in started:
            child.kill()


def _run(results: Connection, event: Any, nice: int, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    os.nice(nice)
    before = time.process_time()
    failure = result = None
    try:
        result = function(event.is_set, results.send, *args)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    results.send((failure, result, round(time.process_time() - before, 2)))
