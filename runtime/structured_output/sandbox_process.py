"""``python -m runtime.structured_output.sandbox_process``: compiles grammars in a separate process.

A native compiler cannot be stopped in a thread. Here the kernel ends the process at its limits of time and memory.

The protocol is one JSON value per line. The first line is a `SandboxSetup`; the reply is `READY` or an error message.
Each further line is a grammar; the reply is a `CheckResult`. The process exits at the end of its input.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runtime.errors import ConfigError
from runtime.request.structured import SCHEMA
from runtime.structured_output.gbnf import CheckResult, traits, translate_grammar, untranslatable_parts
from runtime.structured_output.grammar_cache import STACK_BYTES, GrammarCache, create_grammar_cache
from runtime.structured_output.sandbox import MEMORY_EXIT, READY, SandboxLimits, SandboxSetup

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_ADDRESS_SPACE = STACK_BYTES + (4 << 30)  # bytes, RLIMIT_AS of the process
MAX_GRAMMAR_BYTES = 32 << 20  # bytes of a compiled grammar; an engine caches some dozens
MAX_GROWTH_BYTES = 64 << 20  # bytes by which the process may grow: memory that earlier grammars freed hides growth


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    source, sink = sys.stdin.buffer, sys.stdout.buffer

    def reply(line: bytes) -> None:
        sink.write(line)
        sink.flush()

    setup = msgspec.json.decode(source.readline(), type=SandboxSetup)
    try:
        grammars = create_grammar_cache(Path(setup.directory), setup.info)
        grammars.load_tokenizer()
    except ConfigError as error:
        reply(msgspec.json.encode(str(error)) + b"\n")
        return
    with contextlib.suppress(ValueError, OSError):  # a lower hard limit applies
        resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE, MAX_ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    reply(READY)
    max_resident = _resident() + MAX_GROWTH_BYTES
    for line in source:
        before = _resident()
        try:
            matcher, result = check_grammar(grammars, msgspec.json.decode(line, type=str), setup.limits)
        except MemoryError:
            sys.exit(MEMORY_EXIT)
        grown = _resident() - before
        del matcher
        signal.setitimer(signal.ITIMER_PROF, 0)
        if not result.reason and grown > MAX_GRAMMAR_BYTES:
            size, limit = grown >> 20, MAX_GRAMMAR_BYTES >> 20
            result = CheckResult(f"it takes {size} MiB once compiled, at most {limit}; send a smaller or simpler one")
        result = replace(result, large=_resident() > max_resident)
        reply(msgspec.json.encode(result) + b"\n")


def check_grammar(grammars: GrammarCache, text: str, limits: SandboxLimits) -> tuple[LLMatcher | None, CheckResult]:
    """Checks a grammar, and each part of a refused one. A signal ends the process at its limit of CPU time.

    Returns:
        The compiled grammar, and the result.
    """

    def restart() -> None:
        signal.setitimer(signal.ITIMER_PROF, limits.compile_seconds)

    restart()
    if why := _untranslatable(text, limits.translate_seconds):
        return None, CheckResult.of_refused(why, untranslatable_parts(text))
    matcher, why = grammars.try_compile(text, thorough=True)
    if matcher is not None and not why:
        restart()
        return matcher, CheckResult(witness=grammars.find_witness(matcher, traits(text)))
    return matcher, CheckResult.of_refused(why, grammars.refused_parts(text, restart, limits.parts_seconds))


def _untranslatable(text: str, limit: float) -> str:
    """Returns why a grammar cannot be translated within `limit` seconds of CPU time, or ""."""
    began = time.process_time()
    try:
        translate_grammar(text)
    except ValueError as error:
        return str(error)
    seconds = time.process_time() - began
    if seconds <= limit:
        return ""
    way = "send a smaller schema" if SCHEMA in text else "write it in Lark's, or a smaller one"
    return f"its notation takes {seconds:.2g} s to translate, at most {limit:g}; {way}"


def _resident() -> int:
    """Returns the resident set size in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    main()
