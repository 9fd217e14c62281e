"""Requests whose grammar is being compiled; then they enter the scheduler."""

from __future__ import annotations

from runtime.scheduling.request import Request
from runtime.scheduling.scheduler import Scheduler
from runtime.scheduling.tool_name_matcher import ToolNameMatcher
from runtime.structured_output.async_compiler import GrammarCompiler
from runtime.structured_output.grammar_cache import GrammarCache, GrammarError
from runtime.structured_output.grammar_matcher import GrammarMatcher

IDLE_SECONDS = 0.005  # wait for a grammar if the engine has no other work


class ConstraintError(Exception):
    """Structured output failed: the grammar matcher cannot continue."""


class GrammarQueue:
    """Adds requests to the scheduler, at once or after their grammar is compiled.

    Args:
        grammars: None if structured output is not available.

    Attributes:
        compiling: the requests whose grammar is being compiled. None: structured output is not available.
    """

    def __init__(self, scheduler: Scheduler, grammars: GrammarCache | None) -> None:
        self.scheduler = scheduler
        self._grammars = grammars
        self.compiling: GrammarCompiler[Request] | None = None if grammars is None else GrammarCompiler(grammars)

    @property
    def waiting(self) -> int:
        """Number of requests whose grammar is being compiled."""
        return 0 if self.compiling is None else len(self.compiling)

    def submit(self, request: Request) -> None:
        """Adds a request. Raises ValueError if it has a grammar and structured output is not available."""
        grammar, names = request.spec.grammar, request.spec.tool_names
        if grammar and self.compiling is None:
            raise ValueError("structured output is not available")
        if not grammar and names is not None:
            grammar = names.grammar
        if grammar and self.compiling is not None:
            compiled = self.compiling.submit(request.spec.id, request, grammar, request.spec.tenant)
            if compiled is not None:
                self._start(request, compiled)
        else:
            self.scheduler.add(request)

    def poll(self) -> list[tuple[Request, BaseException]]:
        """Moves requests with compiled grammars to the scheduler.

        Returns:
            Requests whose grammar could not be compiled, with the error.
        """
        failed: list[tuple[Request, BaseException]] = []
        if not self.compiling:
            return failed
        idle = not (self.scheduler.running or self.scheduler.waiting)
        for request, compiled in self.compiling.poll(IDLE_SECONDS if idle else 0.0):
            if not isinstance(compiled, BaseException):
                self._start(request, compiled)
            elif not request.spec.grammar:  # names of tools are then only checked by the parser
                self.scheduler.add(request)
            else:
                failed.append((request, compiled))
        return failed

    def _start(self, request: Request, constraint: GrammarMatcher) -> None:
        spec = request.spec
        limits, witness = spec.structured, spec.witness
        if not spec.grammar and spec.tool_names is not None:
            assert self._grammars is not None
            tokens = self._grammars.load_tokenizer()
            request.tool_names = ToolNameMatcher(
                spec.tool_names, constraint, tokens, first_position=request.prompt_len, mask_id=request.mask_id
            )
            self.scheduler.add(request)
            return
        if limits is not None and limits.complete and witness is not None and len(witness) <= spec.max_tokens:
            assert self._grammars is not None
            constraint.end = self._grammars.output_end(constraint, witness, limits)
        request.constraint = constraint
        self.scheduler.add(request)

    def remove(self, request: Request) -> None:
        """Removes a request in any state and frees its resources."""
        if self.compiling is None or self.compiling.cancel(request.spec.id) is None:
            if request.constraint is None and request.spec.grammar:
                return  # it was not submitted
            self.scheduler.release(request)

    def close(self) -> None:
        if self.compiling is not None:
            self.compiling.close()


def error_message(error: BaseException) -> str:
    """Returns why the output cannot follow its grammar, without the name of the request field."""
    return error.reason if isinstance(error, GrammarError) else str(error)
