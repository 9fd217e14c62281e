"""`dmax`: multi_bd whose open blocks are fed what their filled positions could be, not only what they are (decoding.md
3.3).

The acceptance rule of the same name revises every filled position at each step and says what its embedding is made of
in the next one. A block's first forward is of plain tokens, and so is the one that makes it final: its K/V is that of
its ids, and can be shared.
"""

from __future__ import annotations

from collections.abc import Mapping

from runtime.request.description import Value
from runtime.strategies.base import register_strategy
from runtime.strategies.multi_bd import MultiBlock


@register_strategy("dmax")
class DMax(MultiBlock):
    walks = False
    defaults: Mapping[str, Value] = {"accept_threshold": 0.5}  # of its rule, whatever the family's is
