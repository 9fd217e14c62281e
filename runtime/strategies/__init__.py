"""Decoding strategies, one file each. Importing this package registers them; add yours with one line here."""

from runtime.strategies import multi_bd
from runtime.strategies.base import (
    DecodingContext,
    Feed,
    Strategy,
    also_fits,
    longest_request,
    make_strategy,
    register_strategy,
    strategies,
)

__all__ = [
    "DecodingContext",
    "Feed",
    "Strategy",
    "also_fits",
    "longest_request",
    "make_strategy",
    "multi_bd",
    "register_strategy",
    "strategies",
]
