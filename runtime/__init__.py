"""Unmask's serving runtime for diffusion language models. Names are imported on first use."""

import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "Question", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    from runtime.decisions.questions import Question
    from runtime.llm import LLM
    from runtime.request.sampling_params import SamplingParams


def wait_passively() -> None:
    """Makes OpenMP's threads sleep between parallel regions, unless the user has set OMP_WAIT_POLICY.

    OpenMP reads the variable once, when torch loads it. On a busy host with two cores a model on two spinning threads
    took 25 times as long as on one thread, and twice as long with threads that sleep.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def __getattr__(name: str) -> Any:
    if name == "LLM":
        wait_passively()
        from runtime.llm import LLM

        return LLM
    if name == "Question":
        from runtime.decisions.questions import Question

        return Question
    if name == "SamplingParams":
        from runtime.request.sampling_params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'runtime' has no attribute {name!r}")
