"""Limits of time: to check a grammar, and to apply it to an output."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MaskLimits:
    """CPU time that the grammar of one request may take in the engine's thread, which all requests share.

    Masks of schemas that clients send take 0.02 to 0.2 ms per token, those of a bounded host name 1.4 ms. This was
    measured with a vocabulary of 100,000 tokens on a busy core at 2.5 GHz.

    Attributes:
        seconds: Per request.
        token_seconds: Added per token.
    """

    seconds: float = 0.5
    token_seconds: float = 0.005

    def message(self) -> str:
        """Returns the error of a request that exceeds the limits."""
        more = f" and {self.token_seconds * 1000:g} ms per token" if self.token_seconds else ""
        return f"it takes more than {self.seconds:g} s{more} of CPU time to apply; send a simpler one"


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
