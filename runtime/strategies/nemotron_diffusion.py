"""`nemotron_diffusion`: causal settled rows and a bidirectional open block.

See docs/decoding-rules.md#strategy-nemotron_diffusion.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.engine.request import Request
from runtime.engine.step_plan import Ints
from runtime.strategies.base import register_strategy
from runtime.strategies.shifted import SeededBlocks


@register_strategy("nemotron_diffusion")
class NemotronDiffusion(SeededBlocks):
    from_prompt = True

    def chunk(self, request: Request, room: int) -> int:
        return room

    def visible_end(self, requests: Sequence[Request], owner: Ints, positions: Ints) -> Ints:
        settled = np.array([request.num_final_tokens for request in requests], dtype=np.int64)[owner]
        return np.where(positions < settled, positions + 1, super().visible_end(requests, owner, positions))
