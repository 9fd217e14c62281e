"""Positions of the blocks of a request, which begin at position 0 or at the end of the prompt.

docs/research/decoding-rules.md#block-states defines blocks, and docs/research/decoding-rules.md#strategies where they
begin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from runtime.request.field_spec import CANVAS_LENGTH, FULL_CANVAS, MIN_CANVAS_LENGTH, Value

CANVAS_UNIT = 16  # a canvas that is not complete has a multiple of so many positions


@dataclass(frozen=True)
class BlockLayout:
    """Blocks of `size` positions.

    Attributes:
        from_prompt: the first block begins at the end of the prompt. False: at position 0.
        truncate_last: the last block ends at the end of the output.
        min_canvas: a block has at most as many positions as the output has left, but at least this number, rounded up
            to a multiple of `CANVAS_UNIT`. 0: it does not depend on that.
    """

    size: int
    from_prompt: bool = False
    truncate_last: bool = False
    min_canvas: int = 0

    @property
    def alignment(self) -> int:
        """Number of positions that must share a page or fill complete pages: a block, if blocks are aligned."""
        return 1 if self.from_prompt else self.size

    def of_request(self, values: Mapping[str, Value]) -> BlockLayout:
        """Returns the layout of a request with these values of ``decoding``."""
        if FULL_CANVAS not in values:
            return self
        shortest = 0 if values[FULL_CANVAS] else int(values[MIN_CANVAS_LENGTH])
        return replace(self, size=int(values[CANVAS_LENGTH]), min_canvas=shortest)

    def size_at(self, left: int) -> int:
        """Returns the positions of a block at whose start the output has `left` positions left."""
        if not self.min_canvas:
            return self.size
        return min(-(-max(left, self.min_canvas) // CANVAS_UNIT) * CANVAS_UNIT, self.size)

    def block_start(self, prompt_len: int, position: int) -> int:
        """Returns the start of the block that contains `position`, which is not before the end of the prompt."""
        origin = prompt_len if self.from_prompt else 0
        return origin + (position - origin) // self.size * self.size

    def total_len(self, prompt_len: int, max_tokens: int) -> int:
        """Returns the number of positions of prompt and output, including the complete last block."""
        end = prompt_len + max_tokens
        if self.truncate_last:
            return end
        start = self.block_start(prompt_len, end - 1)
        return start + self.size_at(end - start)

    def num_blocks(self, prompt_len: int, max_tokens: int) -> int:
        """Returns the number of blocks that contain the output."""
        last = self.block_start(prompt_len, prompt_len + max_tokens - 1)
        return (last - self.block_start(prompt_len, prompt_len)) // self.size + 1

    def output_starts(self, prompt_len: int, num_tokens: int) -> list[int]:
        """Returns the offset in an output of `num_tokens` tokens at which each block begins.

        The first block may hold the end of the prompt. It begins at offset 0 then, and is shorter.
        """
        second = self.block_start(prompt_len, prompt_len) + self.size - prompt_len
        return [0, *range(second, num_tokens, self.size)] if num_tokens else []
