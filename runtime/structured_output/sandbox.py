"""Checks grammars in a child process, and remembers the results."""

from __future__ import annotations

import contextlib
import hashlib
import selectors
import signal
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from runtime.child_process import module_command
from runtime.errors import ConfigError, RequestError
from runtime.request.engine_messages import EngineInfo
from runtime.structured_output.gbnf import CheckResult

COMMAND = module_command("runtime.structured_output.sandbox_process")
READY = b'"ready"\n'
MAX_RESULTS = 1024  # results, most of them a few hundred bytes
MAX_TRIES = 2  # processes that check one grammar, if something else ends them
MEMORY_EXIT = 86  # exit code of the process if Python has no memory

OUT_OF_MEMORY = "it takes too much memory to compile; send a smaller or simpler one"


@dataclass(frozen=True)
class SandboxLimits:
    """Limits of checking a grammar in the child process, which receives them with its setup.

    Attributes:
        compile_seconds: CPU time per grammar. The kernel ends a process that exceeds it.
        translate_seconds: CPU time, within `compile_seconds`, to translate GBNF: an engine repeats it between steps.
        answer_seconds: Wall time until the process replies for one grammar. It is many times `compile_seconds`: only a
            process that gets no CPU time reaches it, so the result is not remembered.
        start_seconds: Wall time until a new process is ready.
        parts_seconds: CPU time for the parts of a refused grammar, each of which is checked on its own within
            `compile_seconds`. No further part is checked after that time.
    """

    compile_seconds: float = 1.5
    translate_seconds: float = 0.25
    answer_seconds: float = 60.0
    start_seconds: float = 120.0
    parts_seconds: float = 6.0


class SandboxSetup(msgspec.Struct, frozen=True):
    """Setup of the child process: the checkpoint's directory, constants of the engine, and the limits."""

    directory: str
    info: EngineInfo
    limits: SandboxLimits


class SandboxExited(Exception):
    """The process exited before it replied.

    Attributes:
        code: Exit code as `subprocess` has it.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class GrammarSandbox:
    """Child process that checks the grammars of one engine.

    It starts with the first grammar, and again after a grammar that ended it. Any thread may call `result`; only one
    at a time may call `check`.
    """

    def __init__(
        self, directory: Path, info: EngineInfo, environment: Mapping[str, str], limits: SandboxLimits | None = None
    ) -> None:
        """Prepares the child process, which starts with the first grammar.

        Args:
            directory: The checkpoint, for its tokenizer.
            info: Constants of the engine that the grammars are for.
            environment: Environment variables of the child process.
            limits: Limits per grammar; the defaults of `SandboxLimits` if None.
        """
        self.limits = limits or SandboxLimits()
        self._setup = msgspec.json.encode(SandboxSetup(str(directory), info, self.limits)) + b"\n"
        self._environment = dict(environment)
        self._results: OrderedDict[bytes, CheckResult] = OrderedDict()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def result(self, text: str) -> CheckResult | None:
        """Returns the remembered result of a grammar; None if it was not checked."""
        with self._lock:
            found = self._results.get(digest(text))
            if found is not None:
                self._results.move_to_end(digest(text))
            return found

    def check(self, text: str) -> CheckResult:
        """Returns the result of a grammar.

        An unknown grammar is compiled first, within `start_seconds + answer_seconds` per try. The result is remembered
        unless that time ran out, which a busy machine causes and not the grammar.

        Raises:
            ConfigError: The tokenizer cannot be read.
            RequestError: Something else ended the process each time; status 503.
        """
        found = self.result(text)
        if found is not None:
            return found
        try:
            found = self._run_check(msgspec.json.encode(text) + b"\n")
        except TimeoutError:
            limit = f"{self.limits.answer_seconds:g} s"
            return CheckResult(f"it was not compiled within {limit} on a busy machine; send it again")
        with self._lock:
            self._results[digest(text)] = found
            while len(self._results) > MAX_RESULTS:
                self._results.popitem(last=False)
        return found

    def close(self) -> None:
        """Kills the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()  # waits for it, and closes its pipes

    def _run_check(self, line: bytes) -> CheckResult:
        """Returns the result of one grammar.

        If the process was killed, something else is the cause, such as the kernel when the machine's memory runs out;
        then a new process checks the grammar. At any other end the grammar is the cause.
        """
        for _ in range(MAX_TRIES):
            try:
                process = self._running_process()
            except SandboxExited:
                self.close()
                continue
            try:
                reply = _request(process, line, self.limits.answer_seconds)
            except TimeoutError:
                self.close()
                raise
            except SandboxExited as exited:
                self.close()
                if exited.code in (-signal.SIGKILL, -signal.SIGTERM):
                    continue
                if exited.code == -signal.SIGPROF:
                    limit = f"{self.limits.compile_seconds:g} s"
                    return CheckResult(f"it takes more than {limit} to compile; send a smaller or simpler one")
                return CheckResult(OUT_OF_MEMORY)
            result = msgspec.json.decode(reply, type=CheckResult)
            if result.large:
                self.close()
            return result
        raise RequestError("grammars cannot be checked now: the process that does it was ended; retry", status=503)

    def _running_process(self) -> subprocess.Popen[bytes]:
        """Returns the process, or a new one. Raises SandboxExited if a new one exits before it is ready."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        process = self._process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment
        )
        try:
            reply = _request(process, self._setup, self.limits.start_seconds)
        except TimeoutError:
            self.close()
            raise ConfigError("the process that compiles grammars does not start") from None
        if reply != READY:
            self.close()
            raise ConfigError(msgspec.json.decode(reply, type=str))
        return process


def _request(process: subprocess.Popen[bytes], line: bytes, seconds: float) -> bytes:
    """Sends a line; returns the reply. Raises SandboxExited, TimeoutError."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # the read below detects that the process has exited
        process.stdin.write(line)
        process.stdin.flush()
    reply = _read_line(process.stdout, seconds)
    if not reply.endswith(b"\n"):
        raise SandboxExited(process.wait())
    return reply


def _read_line(source: IO[bytes], seconds: float) -> bytes:
    with selectors.DefaultSelector() as ready:
        ready.register(source, selectors.EVENT_READ)
        if not ready.select(seconds):
            raise TimeoutError
    return source.readline()  # does not block: the child writes a line in one call


def digest(text: str) -> bytes:
    """Returns the key of a grammar in caches: a digest, so that they hold no texts."""
    return hashlib.sha256(text.encode()).digest()
