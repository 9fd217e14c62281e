"""A grammar library that takes the time and memory that a grammar names, instead of grammars that need them.

A grammar whose text contains ``compile for 5 s``, ``compile into 40 MiB`` or ``mask for 20 ms`` takes this CPU time
or memory to compile, or this CPU time for each mask; ``translate for 5 s`` is the time to translate it. All others are
unchanged. ``python -m tests.structured_output.slow_grammars MODULE ARGS`` runs a module with this library.

Why it is needed (llguidance 1.9.1): a schema of forty characters can have ten million states, which take minutes and
gigabytes to compile. An ambiguous grammar of eighty characters matches a text in more ways the longer the text is, so
that each mask takes longer. The translation of GBNF takes quadratic time in its number of rules.
"""

from __future__ import annotations

import re
import runpy
import sys
import time
from typing import Any

_TIME = r" for (\d+) (m?)s"


def command(module: str) -> tuple[str, ...]:
    return sys.executable, "-m", __name__, module


COMPILER = command("runtime.structured_output.sandbox_process")


def _seconds(verb: str, grammar: str) -> float:
    found = re.search(verb + _TIME, grammar)
    return 0.0 if found is None else float(found[1]) / (1000 if found[2] else 1)


def _spend(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class SlowMatcher:
    library: Any

    def __init__(self, tokens: Any, grammar: str, **options: Any) -> None:
        _spend(_seconds("compile", grammar))
        self._mask_seconds = _seconds("mask", grammar)
        size = re.search(r"compile into (\d+) MiB", grammar)
        self._memory = b"x" * (int(size[1]) << 20) if size else b""
        self._matcher = self.library(tokens, grammar, **options)

    def deep_copy(self) -> SlowMatcher:
        copy = SlowMatcher.__new__(SlowMatcher)
        copy.__dict__ |= self.__dict__ | {"_matcher": self._matcher.deep_copy()}
        return copy

    def unsafe_compute_mask_ptr(self, *args: Any) -> Any:
        _spend(self._mask_seconds)
        return self._matcher.unsafe_compute_mask_ptr(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)


def install() -> None:
    """Replaces the library in this process, before modules of structured output are imported."""
    import llguidance

    from runtime.structured_output import gbnf

    translate = gbnf.translate_grammar

    def slow_translate(text: str) -> str:
        _spend(_seconds("translate", text))
        return translate(text)

    SlowMatcher.library = llguidance.LLMatcher
    llguidance.LLMatcher = SlowMatcher  # type: ignore[misc, assignment]
    gbnf.translate_grammar = slow_translate


if __name__ == "__main__":
    install()
    sys.argv.pop(0)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
