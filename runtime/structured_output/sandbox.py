"""Whether grammars can be kept to, as a process beside this one finds, and what it found before."""

from __future__ import annotations

import contextlib
import hashlib
import selectors
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import msgspec

from runtime.errors import ConfigError
from runtime.request.engine_messages import EngineInfo
from runtime.structured_output.limits import TrialLimits
from runtime.structured_output.sandbox_process import READY, Setup, Verdict

COMMAND = (sys.executable, "-m", "runtime.structured_output.sandbox_process")
KEPT = 4096  # verdicts, a few hundred bytes each

LARGE = "it takes too much memory to compile; send a smaller or simpler one"


class Ended(Exception):
    """The process ended before it answered."""


class Trials:
    """Of one engine. The process is started with the first grammar, and again after one that ended it.

    `known` may be called by any thread; `trouble` by one at a time.
    """

    def __init__(
        self, directory: Path, info: EngineInfo, environment: Mapping[str, str], limits: TrialLimits | None = None
    ) -> None:
        """Prepares the child process, which starts with the first grammar.

        Args:
            directory: The checkpoint, for its tokenizer.
            info: Facts of the engine that the grammars are for.
            environment: Environment variables of the child process.
            limits: Of each trial; the defaults of `TrialLimits` if None.
        """
        self.limits = limits or TrialLimits()
        self._setup = msgspec.json.encode(Setup(str(directory), info, self.limits)) + b"\n"
        self._environment = dict(environment)
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def known(self, text: str) -> str | None:
        """Why a grammar cannot be kept to, "" if it can; None where it was not tried."""
        with self._lock:
            name = _name(text)
            found = self._verdicts.get(name)
            if found is not None:
                self._verdicts.move_to_end(name)
            return None if found is None else found.why

    def verdict(self, text: str) -> Verdict:
        """What is remembered of a grammar; an empty one where it was not tried."""
        with self._lock:
            return self._verdicts.get(_name(text), Verdict("", False))

    def trouble(self, text: str) -> str:
        """Returns the reason for a refusal, or "".

        An unknown grammar is compiled first, within `start_seconds + answer_seconds` at most. The result is remembered
        unless the time ran out, which a busy machine causes and not the grammar.

        Raises:
            ConfigError: The tokenizer cannot be read.
        """
        found = self.known(text)
        if found is not None:
            return found
        try:
            verdict = self._tried(msgspec.json.encode(text) + b"\n")
        except TimeoutError:
            return f"it was not compiled within {self.limits.answer_seconds:g} s on a busy machine; send it again"
        with self._lock:
            self._verdicts[_name(text)] = verdict
            while len(self._verdicts) > KEPT:
                self._verdicts.popitem(last=False)
        return verdict.why

    def close(self) -> None:
        """The process ends."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _tried(self, line: bytes) -> Verdict:
        if self._process is None or self._process.poll() is not None:
            self._start()
        process = self._process
        assert process is not None
        try:
            said = _asked(process, line, self.limits.answer_seconds)
        except TimeoutError:
            self.close()
            raise
        except Ended:
            self.close()
            return Verdict(self._too_slow if process.returncode == -signal.SIGPROF else LARGE, False)
        verdict = msgspec.json.decode(said, type=Verdict)
        if verdict.large:
            self.close()
        return verdict

    @property
    def _too_slow(self) -> str:
        return f"it takes more than {self.limits.compile_seconds:g} s to compile; send a smaller or simpler one"

    def _start(self) -> None:
        self.close()
        process = self._process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment
        )
        try:
            said = _asked(process, self._setup, self.limits.start_seconds)
        except (TimeoutError, Ended):
            self.close()
            raise ConfigError(f"the process that compiles grammars does not start ({process.returncode})") from None
        if said != READY:
            self.close()
            raise ConfigError(msgspec.json.decode(said, type=str))


def _asked(process: subprocess.Popen[bytes], line: bytes, seconds: float) -> bytes:
    """The line that answers a line. Raises Ended, TimeoutError."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it reads as the end, below
        process.stdin.write(line)
        process.stdin.flush()
    said = _line(process.stdout, seconds)
    if not said.endswith(b"\n"):
        process.wait()
        raise Ended
    return said


def _line(source: IO[bytes], seconds: float) -> bytes:
    with selectors.DefaultSelector() as ready:
        ready.register(source, selectors.EVENT_READ)
        if not ready.select(seconds):
            raise TimeoutError
    return source.readline()  # written in one go


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _name(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
