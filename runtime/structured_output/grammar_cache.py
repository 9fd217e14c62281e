"""Cache of compiled grammars by their text. Each request gets a copy of the compiled grammar's start state."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.errors import ConfigError, RequestError
from runtime.structured_output.gbnf import (
    GrammarTraits,
    Refused,
    explain,
    separate_parts,
    token_name,
    traits,
    translate_grammar,
)
from runtime.structured_output.grammar_facts import GrammarFacts
from runtime.structured_output.grammar_matcher import GrammarMatcher, MaskLimits, summarize_error
from runtime.structured_output.sandbox import GrammarSandbox, digest
from runtime.weights import tokenizer_json

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from runtime.request.engine_messages import EngineInfo, StructuredLimits
    from runtime.structured_output.witness import OutputEnd, Remembered, WitnessSearch

MAX_CACHED = 64  # compiled grammars
_UNSATISFIABLE = "Unsatisfiable"  # part of the library's error for a schema that no value fits
STACK_BYTES = 512 << 20  # stack size of the compiler, which recurses along chains of rules
QUICK_WALK_TOKENS = 4  # tokens of the quick check; a schema's first two may be a brace and a quotation mark
WALK_TOKENS = 64  # tokens of each walk of a thorough check
NUM_WALKS = 3  # walks of a thorough check: one takes the first allowed token, the others random ones
WALK_SECONDS = 0.15  # CPU time per walk, some ten times what the slowest schemas of clients take
MAX_OVERRUN = 4096  # remembered grammars whose output exceeded its CPU time, as digests
MAX_OVERRUN_ANSWERS = 2  # requests over their CPU time before the grammar is refused; one may be due to a busy machine
OVERRUN_SECONDS = 600.0  # how long an overrun is remembered
# Limits per grammar, so that no schema takes seconds or gigabytes: about 20 ms of lexer, 25 ms per mask, 40 MB of
# states. Masks of the schemas that clients send need a tenth of the items
# (`tests/structured_output/test_tool_schemas.py`).
LIMITS: dict[str, Any] = {
    "max_items_in_row": 2000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 5_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 50_000,
    "verbose_errors": False,
}


@dataclass(frozen=True)
class _Compiled:
    """A compiled grammar, its traits, and the ends of outputs that were found."""

    matcher: LLMatcher
    traits: GrammarTraits
    remembered: Remembered


@dataclass(frozen=True)
class _Overrun:
    """Number of requests whose output exceeded its CPU time, the last reason, and the time when this entry expires."""

    answers: int
    why: str
    until: float


class GrammarCache:
    """Compiled grammars of one engine. Thread-safe, except that `compile` is not if there is a `checker`."""

    def __init__(
        self, load: Callable[[], LLTokenizer], facts: GrammarFacts, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Initializes the cache; nothing is loaded.

        Args:
            load: Loads the tokenizer, at the first grammar.
            facts: Constants of the engine.
            clock: Seconds, for expiry.
        """
        self._read = load
        self.facts = facts
        self._clock = clock
        self.checker: GrammarSandbox | None = None
        self._tokens: LLTokenizer | None = None
        self._search: WitnessSearch | None = None
        self._cache: OrderedDict[str, _Compiled] = OrderedDict()
        self._overruns: OrderedDict[bytes, _Overrun] = OrderedDict()
        self._reading, self._starting, self._lock = threading.Lock(), threading.Lock(), threading.Lock()

    def get(self, text: str) -> GrammarMatcher | None:
        """Returns a new matcher for a cached grammar; None if it is not cached.

        Raises:
            GrammarError: Requests with it exceeded their CPU time within the last minutes.
        """
        with self._lock:
            overrun = self._overrun(text)
            if overrun is not None and overrun.answers >= MAX_OVERRUN_ANSWERS:
                raise GrammarError("structured_outputs", overrun.why)
            found = self._cache.get(text)
            if found is None:
                return None
            self._cache.move_to_end(text)
            return self._start(found)

    def add_overrun(self, text: str, why: str) -> None:
        """Counts a request that exceeded its CPU time.

        After `MAX_OVERRUN_ANSWERS` of them within `OVERRUN_SECONDS`, new requests with the grammar are refused for that
        time.
        """
        with self._lock:
            before = self._overrun(text)
            answers = 1 if before is None else before.answers + 1
            if answers >= MAX_OVERRUN_ANSWERS:
                self._cache.pop(text, None)
            name = digest(text)
            self._overruns[name] = _Overrun(answers, why, self._clock() + OVERRUN_SECONDS)
            self._overruns.move_to_end(name)
            while len(self._overruns) > MAX_OVERRUN:
                self._overruns.popitem(last=False)

    def _overrun(self, text: str) -> _Overrun | None:
        """Returns the unexpired overrun of a grammar. The lock must be held."""
        found = self._overruns.get(digest(text))
        if found is not None and found.until <= self._clock():
            del self._overruns[digest(text)]
            return None
        return found

    def _start(self, compiled: _Compiled) -> GrammarMatcher:
        origin = compiled.traits, compiled.remembered
        return GrammarMatcher(compiled.matcher.deep_copy(), self.facts, origin=origin)

    def compile(self, text: str, param: str) -> GrammarMatcher:
        """Returns a new matcher for a grammar, compiled if it is not cached. Other threads run meanwhile.

        Raises:
            RequestError: The grammar is invalid, exceeds the limits, or matches nothing; names `param`.
        """
        try:
            made = self.get(text)
        except GrammarError as error:
            raise GrammarError(param, error.reason) from None
        if made is not None:
            return made
        why = "" if self.checker is None else self.checker.check(text).reason
        matcher = None
        if not why:
            matcher, why = self.try_compile(text)
        if matcher is None or why:
            raise GrammarError(param, why)
        compiled = _Compiled(matcher, traits(text), {})
        with self._lock:
            self._cache[text] = compiled
            while len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        return self._start(compiled)

    def load_tokenizer(self) -> LLTokenizer:
        """Returns the tokenizer that all grammars share. Raises ConfigError if it cannot be read."""
        with self._reading:
            if self._tokens is None:
                self._tokens = self._read()
                from runtime.structured_output.witness import WitnessSearch

                self._search = WitnessSearch(self._tokens, self.facts)
            return self._tokens

    def witness(self, text: str, matcher: GrammarMatcher) -> list[int] | None:
        """Returns a short output of a grammar, which its check found or else is found now; None if none is found."""
        result = None if self.checker is None else self.checker.result(text)
        if result is not None:
            found = result.witness
        else:
            assert matcher.origin is not None
            found = self.find_witness(matcher.matcher, matcher.origin[0])
        return None if found is None else list(found)

    def find_witness(self, matcher: LLMatcher, grammar_traits: GrammarTraits) -> tuple[int, ...] | None:
        """Returns a short output of a compiled grammar, without an EOS; None if none is found."""
        assert self._search is not None
        return self._search.first(matcher, grammar_traits.suffixes)

    def output_end(self, answer: GrammarMatcher, witness: Sequence[int], limits: StructuredLimits) -> OutputEnd:
        """Returns what ends an output in time.

        Args:
            answer: A matcher that `get` or `compile` returned.
            witness: What `find_witness` returned for its grammar.
            limits: Limits of the request.
        """
        from runtime.structured_output.witness import OutputEnd

        assert self._search is not None
        assert answer.origin is not None
        return OutputEnd(self._search, witness, *answer.origin, max_run=limits.max_run, max_length=limits.max_length)

    def close(self) -> None:
        """Closes the checker."""
        if self.checker is not None:
            self.checker.close()

    def try_compile(self, text: str, *, thorough: bool = False) -> tuple[LLMatcher | None, str]:
        """Compiles a grammar in a thread with a large stack, without caching it.

        Args:
            text: The grammar.
            thorough: Walk through sample outputs to find masks that take too long.

        Returns:
            The compiled grammar, if any, and the reason for which it cannot be used, or "".
        """
        with ThreadPoolExecutor(1, thread_name_prefix="grammar") as deep:
            with self._starting:
                before = threading.stack_size(STACK_BYTES)
                try:
                    work = deep.submit(self._try, text, thorough)  # starts the thread
                finally:
                    threading.stack_size(before)
            return work.result()

    def refused_parts(
        self, text: str, restart: Callable[[], None] = lambda: None, seconds: float = math.inf
    ) -> list[Refused]:
        """Finds the parts that are refused on their own, in a translatable grammar that was refused.

        Args:
            text: The grammar.
            restart: Called before each part is compiled, to restart its limit of CPU time.
            seconds: CPU time of the process after which no further part is compiled.
        """
        end = time.process_time() + seconds
        refused = []
        for name, path, alone in separate_parts(text):
            if time.process_time() >= end:
                break
            restart()
            _, why = self.try_compile(alone, thorough=True)
            if why:
                refused.append((name, f"{path}: {why}", _UNSATISFIABLE in why))
        return refused

    def _try(self, text: str, thorough: bool) -> tuple[LLMatcher | None, str]:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(**LIMITS)
        try:
            matcher = LLMatcher(self.load_tokenizer(), translate_grammar(text), log_level=0, limits=limits)
        except ValueError as error:
            return None, str(error)
        if matcher.is_error():
            return matcher, explain(text, summarize_error(matcher.get_error()))
        if not thorough:
            return matcher, self._walk(matcher, QUICK_WALK_TOKENS)
        for number in range(NUM_WALKS):
            why = self._walk(matcher, WALK_TOKENS, random.Random(number) if number else None, WALK_SECONDS)
            if why:
                return matcher, why
        return matcher, ""

    def _walk(
        self, matcher: LLMatcher, tokens: int, rng: random.Random | None = None, seconds: float | None = None
    ) -> str:
        """Walks through an output of `tokens` tokens; returns why it fails, or "".

        Args:
            matcher: The compiled grammar.
            tokens: Number of tokens.
            rng: Chooses among the allowed tokens other than EOS; None takes the first.
            seconds: CPU time that all masks may take together; None for `MaskLimits`.
        """
        import numpy as np

        limits = MaskLimits() if seconds is None else MaskLimits(seconds, 0.0)
        answer = GrammarMatcher(matcher.deep_copy(), self.facts, limits)
        row = np.zeros(self.facts.mask_len, dtype=np.int32)
        for _ in range(tokens):
            row[:] = 0
            answer.fill_bitmask(row)
            if answer.error or answer.finished:
                break
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            if rng is not None:
                going = allowed[~np.isin(allowed, self.facts.eos)]
                allowed = going if len(going) else allowed
            chosen = int(allowed[0 if rng is None else rng.randrange(len(allowed))])
            for token in answer.forced_tokens()[:tokens] or [chosen]:
                answer.accept_token(token)
        return answer.error


class GrammarError(RequestError):
    """A grammar that no output can satisfy.

    Attributes:
        reason: The reason, without the field.
        parts: Names of its parts that fail on their own, if it has several.
        wrong: Whether one of its schemas is invalid, or matches no value.
    """

    def __init__(self, param: str, reason: str, parts: Collection[str] = (), *, wrong: bool = False) -> None:
        super().__init__(f"{param}: cannot be applied: {reason}", param=param, detail=reason)
        self.reason = reason
        self.parts = tuple(parts)
        self.wrong = wrong


def create_grammar_cache(directory: Path, info: EngineInfo) -> GrammarCache:
    """Returns a cache for the checkpoint in `directory`. The tokenizer is loaded with the first grammar."""
    facts = GrammarFacts.of(
        vocab_size=info.vocab_size, max_token_id=info.max_token_id, mask_id=info.mask_token_id, eos=info.eos_token_ids
    )
    return GrammarCache(
        lambda: load_llguidance_tokenizer(
            directory, size=info.vocab_size, eos=info.eos_token_ids, mask=info.mask_token_id
        ),
        facts,
    )


def load_llguidance_tokenizer(
    directory: Path, *, size: int, eos: Sequence[int], mask: int | None = None
) -> LLTokenizer:
    """Loads ``tokenizer.json`` of `directory`, with special tokens under the names of `token_name`.

    llguidance encodes text that a grammar forces with this tokenizer. With their own names, it would encode the text of
    a special token as that token, which no grammar of text accepts.

    Args:
        directory: The checkpoint.
        size: Vocabulary size of the model, the width of its logits.
        eos: EOS ids.
        mask: Id of the mask token, if any.

    Raises:
        ConfigError: llguidance cannot read the tokenizer.
    """
    from llguidance import LLTokenizer  # imported with the first grammar

    data = tokenizer_json.read_tokenizer(directory)
    file = tokenizer_json.source_name(directory)
    if data is None:
        raise ConfigError(f"{file}: not found; grammars need the tokenizer")
    for token in data["added_tokens"]:
        if token["id"] in (*eos, mask):
            token["special"] = True  # it has no text, even if the file does not flag it as special
    try:
        names = {text: token_name(text) for text in tokenizer_json.control_texts(data)}
        renamed = json.dumps(tokenizer_json.with_new_names(data, names))
        return LLTokenizer(renamed, n_vocab=size, eos_token=list(eos))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"{file}: grammars do not support this tokenizer: {error}") from None
