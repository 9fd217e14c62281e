"""Decoding strategies, one file each. Importing this package registers them; add yours with one line here."""

from runtime.strategies import multi_bd
from runtime.strategies.base import DecodingContext, Strategy, also_fits, make_strategy, register_strategy, strategies

__all__ = ["DecodingContext", "Strategy", "also_fits", "make_strategy", "multi_bd", "register_strategy", "strategies"]
