"""A grammar library that takes the time and memory that a grammar names, instead of grammars that need them.

These parts of a grammar's text cost CPU time or memory. All other grammars are unchanged.

* ``compile for 5 s``, ``compile into 40 MiB``: to compile it
* ``translate for 200 ms``: to translate it
* ``mask for 20 ms``: for each mask
* ``mask grows by 100 us``: the same, and each mask of an answer takes that much more than the one before

``python -m tests.structured_output.slow_grammars MODULE ARGS`` runs a module with this library.

Seen in llguidance 1.9.1: a schema of forty characters has ten million states, which take minutes and gigabytes to
compile. An ambiguous grammar of eighty characters matches a text in more ways the longer the text is, so that each
mask takes longer. Translating a long GBNF takes quadratic time.
"""

from __future__ import annotations

import re
import runpy
import sys
import time
from typing import Any

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def command(module: str) -> tuple[str, ...]:
    return sys.executable, "-m", __name__, module


COMPILER = command("runtime.structured_output.sandbox_process")


def _seconds(what: str, grammar: str) -> float:
    found = re.search(what + r" (\d+) (s|ms|us)", grammar)
    return float(found[1]) * _UNITS[found[2]] if found else 0.0


def _spend(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class SlowMatcher:
    library: Any

    def __init__(self, tokens: Any, grammar: str, **options: Any) -> None:
        _spend(_seconds("compile for", grammar))
        self._mask_seconds = _seconds("mask for", grammar)
        self._mask_growth = _seconds("mask grows by", grammar)
        size = re.search(r"compile into (\d+) MiB", grammar)
        self._memory = b"x" * (int(size[1]) << 20) if size else b""
        self._matcher = self.library(tokens, grammar, **options)

    def deep_copy(self) -> SlowMatcher:
        copy = SlowMatcher.__new__(SlowMatcher)
        copy.__dict__ |= self.__dict__ | {"_matcher": self._matcher.deep_copy()}
        return copy

    def unsafe_compute_mask_ptr(self, *args: Any) -> Any:
        self._mask_seconds += self._mask_growth
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
        _spend(_seconds("translate for", text))
        return translate(text)

    SlowMatcher.library = llguidance.LLMatcher
    llguidance.LLMatcher = SlowMatcher  # type: ignore[misc, assignment]
    gbnf.translate_grammar = slow_translate


if __name__ == "__main__":
    install()
    sys.argv.pop(0)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
