"""Finds sentences of pages that are too long.

`python -m tests.layout.sentences PAGE...` lists all of them for the given pages, or for all pages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.layout.check import Check, Finding
from tests.layout.pages import pages, sentences, texts
from tests.layout.source import package_of, read

MAX_LENGTH = 35  # words


def checked_pages() -> list[str]:
    """Returns the pages that are checked: all except benchmark records and the demo checkpoint's model card."""
    return [page for page in pages() if not page.startswith(("docs/benchmarks/", "runtime/demo/checkpoint/"))]


def findings_in(page: str, content: str) -> Iterator[Finding]:
    for text in texts(content):
        for sentence in sentences(text):
            tokens = sentence.text.split()
            if len(tokens) > MAX_LENGTH:
                detail = f"{len(tokens)} words: {' '.join(tokens[:8])} ..."
                yield Finding(package_of(page), page, page, sentence.line, detail)


def find() -> list[Finding]:
    return [finding for page in checked_pages() for finding in findings_in(page, read(page))]


def advice(page: str) -> str:
    return (
        f"Sentences of pages have at most {MAX_LENGTH} words. Split the new one. "
        f"`python -m tests.layout.sentences {page}` lists all of the page. See CONTRIBUTING.md#language."
    )


CHECK = Check("sentences", find, advice)


if __name__ == "__main__":
    for finding in find():
        if finding.path in sys.argv[1:] or not sys.argv[1:]:
            print(finding)
