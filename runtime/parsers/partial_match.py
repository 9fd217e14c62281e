"""Markers in a text that is pushed in pieces."""

from __future__ import annotations


def partial_match_len(mark: str, text: str) -> int:
    """Returns the length of the longest suffix of `text` that is a proper prefix of `mark`."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0
