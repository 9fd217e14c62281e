"""What strategies are alike in whose blocks follow a tiling: whatever one of them does otherwise, it says itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from runtime.engine.request import Request
from runtime.engine.scheduled_request import ForwardSpan
from runtime.engine.step_plan import Ints
from runtime.request.block_layout import Tiling
from runtime.request.field_spec import Field, Value


class TiledBlocks:
    """See ``strategies.base.Strategy``."""

    fields: tuple[Field, ...] = ()
    defaults: Mapping[str, Value] = {}
    shares_prefixes = True
    whole_prompts = False
    default_max_tokens: int | None = None
    noisy = False
    walks = True
    one_window = False
    tiling: Tiling

    def positions(self, prompt_len: int, max_tokens: int) -> int:
        return self.tiling.covered(prompt_len, max_tokens)

    def settled(self, prompt_len: int) -> int:
        return self.tiling.start(prompt_len, prompt_len)

    def tail(self, request: Request) -> int:
        return 0

    def steady(self, request: Request, span: ForwardSpan) -> bool:
        return False

    def visible_end(self, requests: Sequence[Request], owner: Ints, positions: Ints) -> Ints:
        """Rows come in whole blocks, and see to the end of their own; those of a prompt before the first one see it."""
        size = self.tiling.size
        if not self.tiling.from_prompt:
            return (positions // size + 1) * size
        origin = np.array([request.prompt_len for request in requests], dtype=np.int64)[owner]
        ends: Ints = origin + np.maximum((positions - origin) // size + 1, 0) * size
        return ends
