"""Naive computation of the `visible_end` of each position (docs/research/decoding-rules.md#visible-keys)."""


def block_end(a: int, block: int, origin: int = 0) -> int:
    return origin + ((a - origin) // block + 1) * block


def block_causal_ends(length: int, block: int) -> list[int]:
    return [min(block_end(a, block), length) for a in range(length)]


def prefix_full_ends(length: int, block: int, prompt: int) -> list[int]:
    return [prompt if a < prompt else min(block_end(a, block, prompt), length) for a in range(length)]


def prefix_causal_ends(length: int, committed: int) -> list[int]:
    """Returns the ends of `committed` causal positions and of the open block after them."""
    return [a + 1 if a < committed else length for a in range(length)]
