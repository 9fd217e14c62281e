"""Prints the length of sentences in pages, and the longest files and functions: ``python -m tools.prose [PAGE...]``.

It is a report for writers and reviewers (`make prose`); it has no limits. With pages it prints only their sentences.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from statistics import median

from tests.layout.pages import LINK, SPAN, blank, pages, without_fences
from tests.layout.source import Text, python_files, read

RECORDS = ("docs/benchmarks/", "runtime/demo/checkpoint/")  # measurements, and the demo model's card
SHOWN = 15  # rows of each list

COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
ITEM = re.compile(r"\s*(?:[*+-]|\d+[.)])\s+")
SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bvs\.)[\"')*_]*\s+(?=[\"'(*_`\[]*[^a-z\s])")


def paragraphs(page: str) -> Iterator[Text]:
    """Yields the paragraphs and list items of a page, each with its first line.

    Headings, tables, code blocks, comments, and list items that contain only links are left out.
    """
    first, lines = 0, list[str]()
    for number, line in enumerate((*blank(COMMENT, without_fences(page)).splitlines(), ""), start=1):
        content = re.sub(r"^\s*(?:>\s?)+", "", line)
        item = ITEM.match(content)
        other = not content.strip() or content.lstrip().startswith(("|", "#"))
        if (other or item) and lines:
            text = "\n".join(line.strip() for line in lines)
            if re.sub(r"[\s,;:.]|and", "", LINK.sub("", text)):
                yield Text(first, text)
            lines = []
        if not other:
            first = first if lines else number
            lines.append(content[item.end() :] if item else content)


def sentences(page: str) -> Iterator[Text]:
    """Yields the sentences of a page. A span of code is one word, and a link is its text."""
    for paragraph in paragraphs(page):
        begin = 0
        for end in (*SENTENCE_END.finditer(paragraph.text), None):
            sentence = paragraph.text[begin : end.start() if end else None]
            line = paragraph.line + paragraph.text.count("\n", 0, begin)
            yield Text(line, SPAN.sub("`code`", LINK.sub(r"\1", sentence)))
            begin = end.end() if end else begin


def functions(path: str) -> Iterator[tuple[int, str]]:
    """Yields the functions of a Python file as (lines, place)."""
    for node in ast.walk(ast.parse(read(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            yield node.end_lineno - node.lineno + 1, f"{path}:{node.lineno} {node.name}"


def print_longest(title: str, sizes: list[tuple[int, str]]) -> None:
    print(f"\n{title}")
    for size, place in sorted(sizes, reverse=True)[:SHOWN]:
        print(f"{size:5}  {place}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.prose", description="Prints how long texts and code are.")
    parser.add_argument("page", nargs="*", help="print only the sentences of these pages")
    chosen = parser.parse_args().page
    lengths: list[tuple[int, str]] = []
    print("sentences  median  page")
    for page in chosen or [page for page in pages() if not page.startswith(RECORDS)]:
        found = [(sentence.line, sentence.text.split()) for sentence in sentences(read(page))]
        print(f"{len(found):9}  {median([len(words) for _, words in found] or [0]):6.1f}  {page}")
        lengths += [(len(words), f"{page}:{line} {' '.join(words[:8])} ...") for line, words in found]
    print_longest("longest sentences (words)", lengths)
    if not chosen:
        files = python_files()
        print_longest("longest files (lines)", [(read(path).count("\n"), path) for path in files])
        print_longest("longest functions (lines)", [size for path in files for size in functions(path)])


if __name__ == "__main__":
    main()
