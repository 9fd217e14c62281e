"""`nemotron_diffusion`: causal final rows and a bidirectional open block.

See docs/research/decoding-rules.md#strategy-nemotron_diffusion.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.scheduling.request import Request
from runtime.scheduling.step_plan import Ints
from runtime.strategies.registry import register_strategy
from runtime.strategies.shifted import ShiftedBlockStrategy


@register_strategy("nemotron_diffusion")
class NemotronDiffusion(ShiftedBlockStrategy):
    from_prompt = True

    def visible_end(self, requests: Sequence[Request], owner: Ints, positions: Ints) -> Ints:
        num_final = np.array([request.num_final_tokens for request in requests], dtype=np.int64)[owner]
        return np.where(positions < num_final, positions + 1, super().visible_end(requests, owner, positions))
