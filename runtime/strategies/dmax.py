"""`dmax`: multi_bd with soft embeddings of unmasked positions (docs/research/decoding-rules.md#strategy-dmax).

The unmasking algorithm of the same name revises every unmasked position in each step and returns its next soft
embedding. The first forward pass of a block and its commit use ordinary embeddings. Its K/V therefore depends on its
ids alone and can be reused.
"""

from __future__ import annotations

from collections.abc import Mapping

from runtime.request.field_spec import Value
from runtime.strategies.multi_bd import MultiBlock
from runtime.strategies.registry import register_strategy


@register_strategy("dmax")
class DMax(MultiBlock):
    supports_grammar = False
    defaults: Mapping[str, Value] = {"accept_threshold": 0.5}  # of the algorithm; it replaces that of the family
