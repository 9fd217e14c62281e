"""Positions of the blocks of a request, which begin at position 0 or at the end of the prompt.

docs/research/decoding-rules.md#block-states defines blocks, and docs/research/decoding-rules.md#strategies where they
begin.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockLayout:
    """Blocks of `size` positions.

    Attributes:
        from_prompt: the first block begins at the end of the prompt. False: at position 0.
        truncate_last: the last block ends at the end of the output.
    """

    size: int
    from_prompt: bool = False
    truncate_last: bool = False

    @property
    def alignment(self) -> int:
        """Number of positions that must share a page or fill complete pages: a block, if blocks are aligned."""
        return 1 if self.from_prompt else self.size

    def block_start(self, prompt_len: int, position: int) -> int:
        """Returns the start of the block that contains `position`, which is not before the end of the prompt."""
        origin = prompt_len if self.from_prompt else 0
        return origin + (position - origin) // self.size * self.size

    def total_len(self, prompt_len: int, max_tokens: int) -> int:
        """Returns the number of positions of prompt and output, including the complete last block."""
        end = prompt_len + max_tokens
        return end if self.truncate_last else self.block_start(prompt_len, end - 1) + self.size

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
