"""``python -m runtime.structured.trial``: compiles grammars in a process of its own, which a slow one takes along.

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

import msgspec

from runtime.errors import ConfigError
from runtime.request.io import EngineInfo
from runtime.request.structured import SCHEMA
from runtime.structured.grammars import STACK
from runtime.structured.limits import TrialLimits
from runtime.structured.notation import readable
from runtime.structured.reading import grammars_of

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
        parts: Names of the grammar's parts that cannot be kept to alone.
    """

    why: str
    large: bool
    parts: tuple[str, ...] = ()


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
        signal.setitimer(signal.ITIMER_PROF, setup.limits.compile_seconds)  # whose signal ends the process
        before = _resident()
        text = msgspec.json.decode(line, type=str)
        why = _untranslatable(text, setup.limits.translate_seconds)
        matcher = None
        parts: tuple[str, ...] = ()
        if not why:
            matcher, why = grammars.tried(text, thorough=True)
        if why:
            reason, parts = grammars.refused_parts(text)
            why = reason or why
        grown = _resident() - before
        del matcher
        signal.setitimer(signal.ITIMER_PROF, 0)
        if not why and grown > MOST:
            why = f"it takes {grown >> 20} MiB once compiled, at most {MOST >> 20}; send a smaller or simpler one"
        tell(msgspec.json.encode(Verdict(why, _resident() > most, parts)) + b"\n")


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
