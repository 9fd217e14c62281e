"""Limits of one grammar's trial compilation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrialLimits:
    """How long a grammar's trial may take; the parent sends it to the child process with its setup.

    Attributes:
        compile_seconds: CPU time for one grammar. The kernel ends the process that exceeds it.
        translate_seconds: CPU time, within `compile_seconds`, to translate GBNF: an engine repeats it between steps.
        answer_seconds: Wall time until the process answers for one grammar. It is many times `compile_seconds`: only a
            process that gets no CPU time reaches it, so its verdict is not remembered.
        start_seconds: Wall time until a new process is ready.
    """

    compile_seconds: float = 4.0
    translate_seconds: float = 0.25
    answer_seconds: float = 60.0
    start_seconds: float = 120.0
