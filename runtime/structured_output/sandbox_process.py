"""``python -m runtime.structured_output.sandbox_process``: compiles grammars in a process of its own.

A native compiler cannot be stopped in a thread. Here the system ends the process at its limits of time and memory.
Lines of JSON: first a `Setup`, answered by `READY` or a sentence; then a grammar a line, answered by a `Verdict`. It
ends with its input.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runtime.errors import ConfigError
from runtime.request.engine_messages import EngineInfo
from runtime.request.structured import SCHEMA
from runtime.structured_output.gbnf import RefusedParts, readable, untranslatable_parts
from runtime.structured_output.grammar_cache import STACK, Grammars
from runtime.structured_output.grammar_cache_setup import grammars_of
from runtime.structured_output.limits import TrialLimits

if TYPE_CHECKING:
    from llguidance import LLMatcher

READY = b'"ready"\n'
SPACE = STACK + (4 << 30)  # bytes of addresses that the process may have
MOST = 32 << 20  # bytes of a compiled grammar, of which an engine keeps some dozens
ROOM = 64 << 20  # bytes that a process may grow by: in what earlier grammars left, growth does not show


class Setup(msgspec.Struct, frozen=True):
    """What the child process needs: the checkpoint's directory, facts of the engine, and the limits."""

    directory: str
    info: EngineInfo
    limits: TrialLimits


class Verdict(msgspec.Struct, frozen=True):
    """The result of one trial.

    Attributes:
        why: Why the grammar cannot be kept to, "" if it can.
        large: Whether the process has grown so much that the next trial needs another one.
        parts: Names of the grammar's parts that cannot be kept to alone; () where `wrong`.
        wrong: Whether one of the grammar's schemas is wrong, or no value fits it.
    """

    why: str
    large: bool
    parts: tuple[str, ...] = ()
    wrong: bool = False


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asks ends it
    source, sink = sys.stdin.buffer, sys.stdout.buffer

    def tell(line: bytes) -> None:
        sink.write(line)
        sink.flush()

    setup = msgspec.json.decode(source.readline(), type=Setup)
    try:
        grammars = grammars_of(Path(setup.directory), setup.info)
        grammars.read()
    except ConfigError as error:
        tell(msgspec.json.encode(str(error)) + b"\n")
        return
    with contextlib.suppress(ValueError, OSError):  # a lower limit is in force
        resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tell(READY)
    most = _resident() + ROOM
    for line in source:
        before = _resident()
        matcher, why, refused = tried(grammars, msgspec.json.decode(line, type=str), setup.limits)
        grown = _resident() - before
        del matcher
        signal.setitimer(signal.ITIMER_PROF, 0)
        if not why and grown > MOST:
            why = f"it takes {grown >> 20} MiB once compiled, at most {MOST >> 20}; send a smaller or simpler one"
        verdict = Verdict(why, _resident() > most, refused.names, refused.wrong)
        tell(msgspec.json.encode(verdict) + b"\n")


def tried(grammars: Grammars, text: str, limits: TrialLimits) -> tuple[LLMatcher | None, str, RefusedParts]:
    """Tries a grammar, and its parts alone if it is refused. A signal ends the process at the limit of CPU time.

    Returns:
        The compiled grammar, why it is refused or "", and its refused parts.
    """

    def restart() -> None:
        signal.setitimer(signal.ITIMER_PROF, limits.compile_seconds)

    restart()
    why = _untranslatable(text, limits.translate_seconds)
    if why:
        refused = untranslatable_parts(text)
        return None, refused.why or why, refused
    matcher, why = grammars.tried(text, thorough=True)
    if not why:
        return matcher, "", RefusedParts()
    refused = grammars.refused_parts(text, restart, limits.parts_seconds)
    return matcher, refused.why or why, refused


def _untranslatable(text: str, limit: float) -> str:
    """Why a grammar cannot be translated to the engine's notation within `limit` seconds of CPU time, "" if it can."""
    began = time.process_time()
    try:
        readable(text)
    except ValueError as error:
        return str(error)
    seconds = time.process_time() - began
    if seconds <= limit:
        return ""
    way = "send a smaller schema" if SCHEMA in text else "write it in Lark's, or a smaller one"
    return f"its notation takes {seconds:.2g} s to translate, at most {limit:g}; {way}"


def _resident() -> int:
    """Bytes of memory that the process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    main()
