"""Trials of grammars that begin with the first one: most programs ask for none."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.request.engine_messages import EngineInfo
from runtime.structured_output.limits import TrialLimits

if TYPE_CHECKING:
    from runtime.structured_output.sandbox import Trials


class LateTrials:
    """A `Trial` of an engine in this process, whose environment the other process gets."""

    def __init__(self, directory: Path, info: EngineInfo, limits: TrialLimits | None = None) -> None:
        self._arguments = directory, info, os.environ, limits

    def trouble(self, text: str) -> str:
        return self._trials.trouble(text)

    def close(self) -> None:
        if "_trials" in vars(self):
            self._trials.close()

    @cached_property
    def _trials(self) -> Trials:
        from runtime.structured_output.sandbox import (
            Trials,  # which needs msgspec, and a program without grammars does not
        )

        return Trials(*self._arguments)
