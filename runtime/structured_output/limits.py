"""Limits of the time that grammars take: to try one, and to apply it to an answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MaskLimits:
    """CPU time that one answer's grammar may take on the thread of the steps, which all requests share.

    Masks of schemas that clients send take 0.02 to 0.2 ms per token, those of a bounded host name 1.4 ms. This was
    measured with a vocabulary of 100,000 tokens on a busy core at 2.5 GHz.

    Attributes:
        seconds: For the answer.
        token_seconds: More of it for each token.
    """

    seconds: float = 0.5
    token_seconds: float = 0.005

    def sentence(self) -> str:
        """Why an answer that exceeds the limits ends."""
        more = f" and {self.token_seconds * 1000:g} ms per token" if self.token_seconds else ""
        return f"it takes more than {self.seconds:g} s{more} of CPU time to apply; send a simpler one"


@dataclass(frozen=True)
class TrialLimits:
    """How long a grammar's trial may take; the parent sends it to the child process with its setup.

    Attributes:
        compile_seconds: CPU time for one grammar. The kernel ends the process that exceeds it.
        translate_seconds: CPU time, within `compile_seconds`, to translate GBNF: an engine repeats it between steps.
        answer_seconds: Wall time until the process answers for one grammar. It is many times `compile_seconds`: only a
            process that gets no CPU time reaches it, so its verdict is not remembered.
        start_seconds: Wall time until a new process is ready.
        parts_seconds: CPU time for the parts of a grammar that the engine refuses, each of which is tried alone and has
            `compile_seconds`. No part is tried once it has passed.
    """

    compile_seconds: float = 1.5
    translate_seconds: float = 0.25
    answer_seconds: float = 60.0
    start_seconds: float = 120.0
    parts_seconds: float = 6.0
