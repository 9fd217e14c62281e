"""Positions of the blocks of a request, which begin at position 0 or at the end of the prompt.

docs/decoding-rules.md#block-states defines blocks, and docs/decoding-rules.md#strategies where they begin.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockLayout:
    """Blocks of `size` positions; the first begins at 0 or, with `from_prompt`, where the prompt ends. With `cut` the
    last one ends where the answer does."""

    size: int
    from_prompt: bool = False
    truncate_last: bool = False

    @property
    def alignment(self) -> int:
        """Positions that lie in one page, or fill whole ones: a block, where all begin on multiples of their size."""
        return 1 if self.from_prompt else self.size

    def block_start(self, prompt_len: int, position: int) -> int:
        """Where the block that holds `position`, of the prompt's end or later, begins."""
        origin = prompt_len if self.from_prompt else 0
        return origin + (position - origin) // self.size * self.size

    def total_len(self, prompt_len: int, max_tokens: int) -> int:
        """Positions of prompt and answer, as far as the last block reaches."""
        end = prompt_len + max_tokens
        return end if self.truncate_last else self.block_start(prompt_len, end - 1) + self.size

    def num_blocks(self, prompt_len: int, max_tokens: int) -> int:
        """How many blocks hold the answer."""
        last = self.block_start(prompt_len, prompt_len + max_tokens - 1)
        return (last - self.block_start(prompt_len, prompt_len)) // self.size + 1
