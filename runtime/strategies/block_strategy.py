"""Base class of strategies with a fixed block layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from runtime.engine.request import ForwardSpan, Request
from runtime.engine.step_plan import Ints
from runtime.request.block_layout import BlockLayout
from runtime.request.field_spec import Field, Value


class BlockStrategy:
    """Defaults of the attributes and methods of `Strategy`."""

    fields: tuple[Field, ...] = ()
    defaults: Mapping[str, Value] = {}
    prefix_cacheable = True
    requires_full_prompt = False
    default_max_tokens: int | None = None
    uniform_noise = False
    supports_grammar = True
    shared_window = False
    block_layout: BlockLayout

    def total_len(self, prompt_len: int, max_tokens: int) -> int:
        return self.block_layout.total_len(prompt_len, max_tokens)

    def initial_final_len(self, prompt_len: int) -> int:
        return self.block_layout.block_start(prompt_len, prompt_len)

    def uncacheable_tail(self, request: Request) -> int:
        return 0

    def is_layout_stable(self, request: Request, span: ForwardSpan) -> bool:
        return False

    def visible_end(self, requests: Sequence[Request], owner: Ints, positions: Ints) -> Ints:
        """Returns the end of each row's block; for prompts before the first block, the end of the prompt."""
        size = self.block_layout.size
        if not self.block_layout.from_prompt:
            return (positions // size + 1) * size
        origin = np.array([request.prompt_len for request in requests], dtype=np.int64)[owner]
        ends: Ints = origin + np.maximum((positions - origin) // size + 1, 0) * size
        return ends
