"""`nemotron_diffusion`: causal final rows and a bidirectional open block.

See docs/research/decoding-rules.md#strategy-nemotron_diffusion.
"""

from __future__ import annotations

from runtime.scheduling.request import Request
from runtime.scheduling.strategy import VisibleKeys
from runtime.strategies.registry import register_strategy
from runtime.strategies.shifted import ShiftedBlockStrategy


@register_strategy("nemotron_diffusion")
class NemotronDiffusion(ShiftedBlockStrategy):
    from_prompt = True

    def visible_keys(self, request: Request, num_final_tokens: int) -> VisibleKeys:
        return super().visible_keys(request, num_final_tokens)._replace(causal_end=num_final_tokens)
