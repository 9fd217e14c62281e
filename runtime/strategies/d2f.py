"""`d2f`: multi_bd on blocks that tile from the prompt's end; every row of the prompt sees all of it (decoding.md 3.4).

What a prompt's K/V is depends on where it ends, so that it is forwarded in one piece and shared with nobody. Where the
logits of a position are those of the row before it, the row before the first open block is forwarded again.
"""

from __future__ import annotations

from collections.abc import Mapping

from runtime.request.description import Field, Value, share
from runtime.request.tiling import Tiling
from runtime.state.request import Request
from runtime.strategies.base import DecodingContext, register_strategy
from runtime.strategies.multi_bd import MultiBlock

SEMI_COMPLETE = share("semi_complete_threshold", 0.95, "progress of a block at which its successor may force a token")


@register_strategy("d2f")
class DiscreteDiffusionForcing(MultiBlock):
    fields: tuple[Field, ...] = tuple(SEMI_COMPLETE if f.name == SEMI_COMPLETE.name else f for f in MultiBlock.fields)
    defaults: Mapping[str, Value] = {"accept_threshold": 0.9}
    buffers = 4
    shares_prefixes = False
    whole_prompts = True

    def __init__(self, context: DecodingContext) -> None:
        super().__init__(context)
        self.tiling = Tiling(context.block_size, from_prompt=True)
        self.shift = int(context.shift)
        self.longest_prompt = context.max_model_len - 1

    def max_rows(self) -> int:
        return max(super().max_rows() + self.shift, self.longest_prompt)

    def chunk(self, request: Request, room: int) -> int:
        """The whole prompt, then whole blocks."""
        prompt = max(request.prompt_len - request.cached, 0)
        return prompt + super().chunk(request, room - prompt) if prompt <= room else 0
