"""A grammar sandbox that is created with the first grammar: most programs use none."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.request.engine_messages import EngineInfo
from runtime.structured_output.limits import SandboxLimits

if TYPE_CHECKING:
    from runtime.structured_output.sandbox import GrammarSandbox


class LazyGrammarSandbox:
    """`GrammarChecker` of an engine in this process. The child process inherits the environment."""

    def __init__(self, directory: Path, info: EngineInfo, limits: SandboxLimits | None = None) -> None:
        self._arguments = directory, info, os.environ, limits

    def check(self, text: str) -> str:
        return self._sandbox.check(text)

    def close(self) -> None:
        if "_trials" in vars(self):
            self._sandbox.close()

    @cached_property
    def _sandbox(self) -> GrammarSandbox:
        from runtime.structured_output.sandbox import (
            GrammarSandbox,  # which needs msgspec, and a program without grammars does not
        )

        return GrammarSandbox(*self._arguments)
