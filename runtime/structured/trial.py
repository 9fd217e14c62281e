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
    """Why a grammar cannot be kept to, "" if it can; and whether the process has grown too `large`."""

    why: str
    large: bool


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
        text, why = _translated(msgspec.json.decode(line, type=str), setup.limits.translate_seconds)
        matcher = None
        if not why:
            matcher, why = grammars.tried(text)
        grown = _resident() - before
        del matcher
        signal.setitimer(signal.ITIMER_PROF, 0)
        if not why and grown > MOST:
            why = f"it takes {grown >> 20} MiB once compiled, at most {MOST >> 20}; send a smaller or simpler one"
        tell(msgspec.json.encode(Verdict(why, _resident() > most)) + b"\n")


def _translated(text: str, limit: float) -> tuple[str, str]:
    """Translates a grammar to the engine's notation.

    Returns:
        The translated text, and the reason for a refusal ("" if there is none): the translation failed, or took more
        than `limit` seconds of CPU time.
    """
    began = time.process_time()
    try:
        text = readable(text)
    except ValueError as error:
        return text, str(error)
    seconds = time.process_time() - began
    if seconds <= limit:
        return text, ""
    why = f"its notation takes {seconds:.2g} s to translate, at most {limit:g}; write it in Lark's, or a smaller one"
    return text, why


def _resident() -> int:
    """Bytes of memory that the process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    main()
