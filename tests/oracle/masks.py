"""The `visible_end` of each position of a sequence (docs/research/decoding-rules.md#visible-keys), row by row."""

from __future__ import annotations


def block_end(a: int, block: int, origin: int = 0) -> int:
    return origin + ((a - origin) // block + 1) * block


def block_causal_ends(length: int, block: int) -> list[int]:
    return [min(block_end(a, block), length) for a in range(length)]


def prefix_full_ends(length: int, block: int, prompt: int) -> list[int]:
    return [prompt if a < prompt else min(block_end(a, block, prompt), length) for a in range(length)]


def prefix_causal_ends(length: int, committed: int) -> list[int]:
    """`committed` positions are causal; those after it are the open block."""
    return [a + 1 if a < committed else length for a in range(length)]
