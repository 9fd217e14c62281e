"""Compiled grammars, kept by their text: the next request with the same one starts from a copy."""

from __future__ import annotations

import hashlib
import math
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from runtime.errors import RequestError
from runtime.structured_output.gbnf import RefusedParts, explain, parts_alone, readable
from runtime.structured_output.grammar_matcher import Constraint, Facts, sentence
from runtime.structured_output.limits import MaskLimits

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

KEPT = 64  # compiled grammars
_UNSATISFIABLE = "Unsatisfiable"  # in the engine's refusal of a schema that no value fits
STACK = 512 << 20  # bytes of address space for the compiler, which goes down a chain of rules by calling itself
TRIED = 4  # choices of a new grammar's answers, of which a schema's first two may be a brace and a quotation mark
WALKED = 64  # tokens of each answer that a trial walks through
WALKS = 3  # answers of a trial: one of the first allowed tokens, the others of random ones
WALK_SECONDS = 0.3  # CPU time of each, some 20 times what the slowest schemas of clients take
MAX_OVERRUN = 4096  # grammars of which an answer exceeded its CPU time, as digests
REFUSING_ANSWERS = 2  # of a grammar that exceed their CPU time before it is refused: one may have met a busy machine
OVERRUN_SECONDS = 600.0  # for which an overrun is remembered
# Of one grammar, so that no schema takes seconds or gigabytes: about 20 ms of lexer, 25 ms per mask, 40 MB of states.
# Masks of the schemas that clients send need a tenth of the items (`tests/structured_output/test_tool_schemas.py`).
LIMITS = {
    "max_items_in_row": 2000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 5_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 50_000,
    "verbose_errors": False,
}


class Trial(Protocol):
    """Where grammars are tried before they are compiled here."""

    def trouble(self, text: str) -> str:
        """Why it cannot be kept to, "" if it can."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class _Overrun:
    """How many answers of a grammar exceeded their CPU time, why the last of them ended, and when that is forgotten."""

    answers: int
    why: str
    until: float


class Grammars:
    """Safe to be used by several threads, but for `compiled` where there is a `trial`."""

    def __init__(
        self, read: Callable[[], LLTokenizer], facts: Facts, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepares the cache; nothing is loaded.

        Args:
            read: Loads the tokenizer, once a grammar needs it.
            facts: Of the engine.
            clock: Seconds, for what expires.
        """
        self._read = read
        self.facts = facts
        self._clock = clock
        self.trial: Trial | None = None
        self._tokens: LLTokenizer | None = None
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()
        self._overruns: OrderedDict[bytes, _Overrun] = OrderedDict()
        self._reading, self._starting, self._lock = threading.Lock(), threading.Lock(), threading.Lock()

    def known(self, text: str) -> Constraint | None:
        """A request's own start in a grammar that was compiled before, None if it was not.

        Raises:
            GrammarError: Answers of it exceeded their CPU time within the last minutes.
        """
        with self._lock:
            overrun = self._overrun(text)
            if overrun is not None and overrun.answers >= REFUSING_ANSWERS:
                raise GrammarError("structured_outputs", overrun.why)
            found = self._kept.get(text)
            if found is None:
                return None
            self._kept.move_to_end(text)
            return self._start(found)

    def add_overrun(self, text: str, why: str) -> None:
        """Counts an answer that exceeded its CPU time. After the second one within `OVERRUN_SECONDS`, new requests with
        the grammar are refused for so long."""
        with self._lock:
            before = self._overrun(text)
            answers = 1 if before is None else before.answers + 1
            if answers >= REFUSING_ANSWERS:
                self._kept.pop(text, None)
            name = _digest(text)
            self._overruns[name] = _Overrun(answers, why, self._clock() + OVERRUN_SECONDS)
            self._overruns.move_to_end(name)
            while len(self._overruns) > MAX_OVERRUN:
                self._overruns.popitem(last=False)

    def _overrun(self, text: str) -> _Overrun | None:
        """What is remembered of a grammar's overruns; the lock is held."""
        found = self._overruns.get(_digest(text))
        if found is not None and found.until <= self._clock():
            del self._overruns[_digest(text)]
            return None
        return found

    def _start(self, matcher: LLMatcher) -> Constraint:
        return Constraint(matcher.deep_copy(), self.facts)

    def compiled(self, text: str, param: str) -> Constraint:
        """A request's own start in a grammar; other threads run while it is compiled.

        Raises:
            RequestError: about `param`: it is wrong, larger than the limits, or nothing fits it.
        """
        try:
            made = self.known(text)
        except GrammarError as error:
            raise GrammarError(param, error.why) from None
        if made is not None:
            return made
        why = "" if self.trial is None else self.trial.trouble(text)
        matcher = None
        if not why:
            matcher, why = self.tried(text)
        if matcher is None or why:
            raise GrammarError(param, why)
        with self._lock:
            self._kept[text] = matcher
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return self._start(matcher)

    def read(self) -> LLTokenizer:
        """The tokenizer, as all grammars have it. Raises ConfigError: it cannot be read."""
        with self._reading:
            if self._tokens is None:
                self._tokens = self._read()
            return self._tokens

    def close(self) -> None:
        """Nothing is tried any more."""
        if self.trial is not None:
            self.trial.close()

    def tried(self, text: str, *, thorough: bool = False) -> tuple[LLMatcher | None, str]:
        """The grammar, compiled in a thread that is deep enough and not kept, and why it cannot be kept to, if so.
        `thorough`: answers are walked through to find masks that take too long."""
        with ThreadPoolExecutor(1, thread_name_prefix="grammar") as deep:
            with self._starting:
                before = threading.stack_size(STACK)
                try:
                    work = deep.submit(self._try, text, thorough)  # which starts the thread
                finally:
                    threading.stack_size(before)
            return work.result()

    def refused_parts(
        self, text: str, restart: Callable[[], None] = lambda: None, seconds: float = math.inf
    ) -> RefusedParts:
        """Finds the parts that are refused alone, of a grammar that can be translated and is refused.

        Args:
            text: The grammar.
            restart: Called before each part is compiled, to restart its limit of CPU time.
            seconds: CPU time of the process after which no further part is compiled.
        """
        end = time.process_time() + seconds
        reasons: list[str] = []
        names: list[str] = []
        wrong = False
        for name, path, alone in parts_alone(text):
            if time.process_time() >= end:
                break
            restart()
            _, why = self.tried(alone, thorough=True)
            if why:
                reasons.append(f"{path}: {why}")
                names.append(name)
                wrong = wrong or _UNSATISFIABLE in why
        return RefusedParts(reasons[0] if reasons else "", () if wrong else tuple(names), wrong)

    def _try(self, text: str, thorough: bool) -> tuple[LLMatcher | None, str]:
        try:
            matcher = self._compile(readable(text))
        except ValueError as error:
            return None, str(error)
        if matcher.is_error():
            return matcher, explain(text, sentence(matcher.get_error()))
        if not thorough:
            return matcher, self._walked(matcher, TRIED)
        for number in range(WALKS):
            why = self._walked(matcher, WALKED, random.Random(number) if number else None, WALK_SECONDS)
            if why:
                return matcher, why
        return matcher, ""

    def _walked(
        self, matcher: LLMatcher, tokens: int, rng: random.Random | None = None, seconds: float | None = None
    ) -> str:
        """Why an answer of so many tokens cannot be written, "" if it can.

        Args:
            matcher: The compiled grammar.
            tokens: The choices of the answer.
            rng: Chooses among the allowed tokens, but the end of sequence; None: the first is chosen.
            seconds: CPU time that all masks may take together; None for `MaskLimits`.
        """
        import numpy as np

        limits = MaskLimits() if seconds is None else MaskLimits(seconds, 0.0)
        answer = Constraint(matcher.deep_copy(), self.facts, limits)
        row = np.zeros(self.facts.words, dtype=np.int32)
        for _ in range(tokens):
            row[:] = 0
            answer.fill(row)
            if answer.failed or answer.ended:
                break
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            if rng is not None:
                going = allowed[~np.isin(allowed, self.facts.eos)]
                allowed = going if len(going) else allowed
            chosen = int(allowed[0 if rng is None else rng.randrange(len(allowed))])
            for token in answer.forced()[:tokens] or [chosen]:
                answer.take(token)
        return answer.failed

    def _compile(self, text: str) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        tokens = self.read()
        limits: Any = LIMITS
        made: LLParserLimits = LLParserLimits(**limits)
        return LLMatcher(tokens, text, log_level=0, limits=made)


class GrammarError(RequestError):
    """A grammar that no answer can keep to.

    Attributes:
        why: The reason, without the field. parts: Names of its parts that cannot be kept to alone, if it has several.
        wrong: Whether a schema in it is wrong, or no value fits it.
    """

    def __init__(self, param: str, why: str, parts: Collection[str] = (), *, wrong: bool = False) -> None:
        super().__init__(f"{param}: cannot be kept to: {why}", param=param, detail=why)
        self.why = why
        self.parts = tuple(parts)
        self.wrong = wrong


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
