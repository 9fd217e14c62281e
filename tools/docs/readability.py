"""Prints the length of sentences per page: ``python -m tools.docs.readability [PAGE...]``."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

from tests.layout.pages import pages, sentences, texts

RECORDS = "docs/benchmarks/"


def lengths(markdown: str) -> list[int]:
    """Returns the number of words of each sentence; [0] for a page without prose."""
    return [len(sentence.text.split()) for text in texts(markdown) for sentence in sentences(text)] or [0]


if __name__ == "__main__":
    for page in sys.argv[1:] or [page for page in pages() if not page.startswith(RECORDS)]:
        found = lengths(Path(page).read_text(encoding="utf-8"))
        print(f"{page:50} {len(found):4} sentences, median {median(found):4.1f}, longest {max(found):3}")
