"""Unmask's serving runtime for diffusion language models. Importing it loads nothing heavy: names resolve on use."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    from runtime.llm import LLM
    from runtime.request.params import SamplingParams


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from runtime.llm import LLM

        return LLM
    if name == "SamplingParams":
        from runtime.request.params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'runtime' has no attribute {name!r}")
