"""How requests come to the scheduler: at once, or when the grammar that their answers keep to is compiled."""

from __future__ import annotations

from runtime.engine.request import Request
from runtime.engine.scheduler import Scheduler
from runtime.structured_output.async_compiler import GrammarCompiler
from runtime.structured_output.grammar_cache import GrammarCache, GrammarError

IDLE_SECONDS = 0.005  # that an engine without other work waits for a grammar at a time


class ConstraintError(Exception):
    """An answer cannot keep to its grammar any longer."""


class Entrance:
    """`grammars`: None where no answer can keep to one."""

    def __init__(self, scheduler: Scheduler, grammars: GrammarCache | None) -> None:
        self.scheduler = scheduler
        self._compiling: GrammarCompiler[Request] | None = None if grammars is None else GrammarCompiler(grammars)

    @property
    def waiting(self) -> int:
        """Requests whose grammars are being compiled."""
        return 0 if self._compiling is None else len(self._compiling)

    def enter(self, request: Request) -> None:
        """Raises ValueError for a grammar where there are none."""
        grammar = request.spec.grammar
        if grammar:
            if self._compiling is None:
                raise ValueError("this engine has no grammars")
            request.constraint = self._compiling.submit(request.spec.id, request, grammar, request.spec.tenant)
            if request.constraint is None:
                return
        self.scheduler.add(request)

    def let_in(self) -> list[tuple[Request, BaseException]]:
        """Hand over those whose grammars are there; those whose grammars are wrong, and why."""
        wrong: list[tuple[Request, BaseException]] = []
        if not self._compiling:
            return wrong
        idle = not (self.scheduler.running or self.scheduler.waiting)
        for request, made in self._compiling.poll(IDLE_SECONDS if idle else 0.0):
            if isinstance(made, BaseException):
                wrong.append((request, made))
            else:
                request.constraint = made
                self.scheduler.add(request)
        return wrong

    def leave(self, request: Request) -> None:
        """Wherever it is, it holds nothing any more."""
        if self._compiling is None or self._compiling.cancel(request.spec.id) is None:
            if request.constraint is None and request.spec.grammar:
                return  # it has not come in
            self.scheduler.release(request)

    def close(self) -> None:
        if self._compiling is not None:
            self._compiling.close()


def reason_of(error: BaseException) -> str:
    """Why an answer cannot keep to its grammar, without the field that asked for the grammar."""
    return error.reason if isinstance(error, GrammarError) else str(error)


def check_kept(request: Request) -> None:
    """Raises ConstraintError where the answer's grammar gave up in this step."""
    if request.constraint is not None and request.constraint.error:
        raise ConstraintError(request.constraint.error)
