"""Queues requests until the grammar of their structured output is compiled."""

from __future__ import annotations

from runtime.engine.request import Request
from runtime.engine.scheduler import Scheduler
from runtime.structured_output.async_compiler import GrammarCompiler
from runtime.structured_output.grammar_cache import GrammarCache, GrammarError

IDLE_SECONDS = 0.005  # wait for a grammar if the engine has no other work


class ConstraintError(Exception):
    """Structured output failed: the grammar matcher cannot continue."""


class GrammarQueue:
    """Adds requests to the scheduler, at once or after their grammar is compiled.

    Args:
        grammars: None if structured output is not available.
    """

    def __init__(self, scheduler: Scheduler, grammars: GrammarCache | None) -> None:
        self.scheduler = scheduler
        self._compiling: GrammarCompiler[Request] | None = None if grammars is None else GrammarCompiler(grammars)

    @property
    def waiting(self) -> int:
        """Number of requests whose grammar is being compiled."""
        return 0 if self._compiling is None else len(self._compiling)

    def submit(self, request: Request) -> None:
        """Adds a request. Raises ValueError if it has a grammar and structured output is not available."""
        grammar = request.spec.grammar
        if grammar:
            if self._compiling is None:
                raise ValueError("structured output is not available")
            request.constraint = self._compiling.submit(request.spec.id, request, grammar, request.spec.tenant)
            if request.constraint is None:
                return
        self.scheduler.add(request)

    def poll(self) -> list[tuple[Request, BaseException]]:
        """Moves requests with compiled grammars to the scheduler.

        Returns:
            Requests whose grammar could not be compiled, with the error.
        """
        failed: list[tuple[Request, BaseException]] = []
        if not self._compiling:
            return failed
        idle = not (self.scheduler.running or self.scheduler.waiting)
        for request, compiled in self._compiling.poll(IDLE_SECONDS if idle else 0.0):
            if isinstance(compiled, BaseException):
                failed.append((request, compiled))
            else:
                request.constraint = compiled
                self.scheduler.add(request)
        return failed

    def remove(self, request: Request) -> None:
        """Removes a request in any state and frees all that it holds."""
        if self._compiling is None or self._compiling.cancel(request.spec.id) is None:
            if request.constraint is None and request.spec.grammar:
                return  # it was not submitted
            self.scheduler.release(request)

    def close(self) -> None:
        if self._compiling is not None:
            self._compiling.close()


def error_message(error: BaseException) -> str:
    """Returns why the output cannot follow its grammar, without the name of the request field."""
    return error.reason if isinstance(error, GrammarError) else str(error)


def check_constraint(request: Request) -> None:
    """Raises ConstraintError if the grammar matcher of the request failed in this step."""
    if request.constraint is not None and request.constraint.error:
        raise ConstraintError(request.constraint.error)
