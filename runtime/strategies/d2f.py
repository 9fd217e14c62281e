"""`d2f`: multi_bd with blocks from the end of the prompt on (docs/research/decoding-rules.md#strategy-d2f).

Rows of the prompt attend to the complete prompt. Its K/V depends on where it ends. It is therefore prefilled in one
forward pass, and no other request uses it. With a logits shift, the row before the first open block is forwarded again.
"""

from __future__ import annotations

from collections.abc import Mapping

from runtime.request.block_layout import BlockLayout
from runtime.request.field_spec import Field, Value, fraction_field
from runtime.scheduling.request import Request
from runtime.scheduling.strategy import DecodingContext
from runtime.strategies.multi_bd import MultiBlock
from runtime.strategies.registry import register_strategy

SEMI_COMPLETE = fraction_field(
    "semi_complete_threshold", 0.95, "progress of a block from which its successor may force a token"
)


@register_strategy("d2f")
class DiscreteDiffusionForcing(MultiBlock):
    fields: tuple[Field, ...] = tuple(SEMI_COMPLETE if f.name == SEMI_COMPLETE.name else f for f in MultiBlock.fields)
    defaults: Mapping[str, Value] = {"accept_threshold": 0.9}
    default_buffer_size = 4
    prefix_cacheable = False
    requires_full_prompt = True

    def __init__(self, context: DecodingContext) -> None:
        super().__init__(context)
        self.block_layout = BlockLayout(context.block_size, from_prompt=True)
        self.shift_by = int(context.shift)
        self.longest_prompt = context.max_model_len - 1

    def max_rows(self) -> int:
        return max(super().max_rows() + self.shift_by, self.longest_prompt)

    def prefill_chunk_size(self, request: Request, budget: int) -> int:
        """Returns the full prompt and complete blocks; 0 if the prompt exceeds the budget."""
        prompt = max(request.prompt_len - request.num_computed_tokens, 0)
        return prompt + (budget - prompt) // self.block_size * self.block_size if prompt <= budget else 0
