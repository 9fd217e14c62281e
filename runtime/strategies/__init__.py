"""Decoding strategies, one file each. Importing this package registers them; add yours with one line here."""

from runtime.strategies import d2f, diffusion_gemma, dmax, fast_dllm_v2, full, multi_bd, nemotron_diffusion
from runtime.strategies.base import (
    DecodingContext,
    Strategy,
    also_fits,
    longest_request,
    make_strategy,
    register_strategy,
    strategies,
)

__all__ = [
    "DecodingContext",
    "Strategy",
    "also_fits",
    "d2f",
    "diffusion_gemma",
    "dmax",
    "fast_dllm_v2",
    "full",
    "longest_request",
    "make_strategy",
    "multi_bd",
    "nemotron_diffusion",
    "register_strategy",
    "strategies",
]
