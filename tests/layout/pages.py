"""Reads Markdown pages: their headings and their prose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from tests.layout.source import CODE, ROOT, Text

FENCE = re.compile(r"^([ \t]*)(```|~~~).*?^[ \t]*\2[ \t]*$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)
MARKER = re.compile(r"\s*(?:[*+-]|\d+[.)])\s+")
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\](?:\([^)\s]*\)|\[[^\]]*\])")
SPAN = re.compile(r"(?<!`)(`+)(?!`)(?:(?!\n[ \t]*\n).)+?(?<!`)\1(?!`)", re.DOTALL)  # within one paragraph
SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bvs\.)[\"')*_]*\s+(?=[\"'(*_`\[]*[^a-z\s])")


@cache
def pages() -> tuple[str, ...]:
    """Returns the paths of all pages, relative to the root: at the root, in docs/, in charts/ and in the packages."""
    folders = ("docs", "charts", *CODE)
    found = [*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*.md"))]
    return tuple(sorted(path.relative_to(ROOT).as_posix() for path in found))


def without_fences(text: str) -> str:
    """Blanks fenced code; every character keeps its position."""
    return _blank(FENCE, text)


def without_code(text: str) -> str:
    """Blanks fenced code and spans of code; every character keeps its position."""
    return _blank(SPAN, without_fences(text))


def headings(text: str) -> list[str]:
    return HEADING.findall(without_fences(text))


def slugs(text: str) -> set[str]:
    """Returns the anchors of a page: those that GitHub makes from its headings, and those in its HTML tags."""
    found = set(re.findall(r"""<a (?:id|name)=["']([^"']+)""", text))
    for heading in headings(text):
        slug = re.sub(r"[^\w\- ]", "", LINK.sub(r"\1", heading).lower()).replace(" ", "-")
        number = 0
        while (anchor := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(anchor)
    return found


def _blank(expression: re.Pattern[str], text: str) -> str:
    return expression.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def texts(page: str) -> Iterator[Text]:
    """Yields paragraphs and list items of a page, each with its first line.

    Headings, tables, code blocks, comments, and list items that contain only links are left out.
    """
    first, lines = 0, list[str]()
    for number, line in enumerate((*_blank(COMMENT, without_fences(page)).splitlines(), ""), start=1):
        content = re.sub(r"^\s*(?:>\s?)+", "", line)
        item = MARKER.match(content)
        ends = not content.strip() or item or content.lstrip().startswith(("|", "#"))
        if ends and lines:
            yield from _prose(first, lines)
            lines = []
        if content.lstrip().startswith(("|", "#")) or not content.strip():
            continue
        if not lines:
            first = number
        lines.append(content[item.end() :] if item else content)


def _prose(first: int, lines: list[str]) -> Iterator[Text]:
    text = "\n".join(line.strip() for line in lines)
    if re.sub(r"[\s,;:.]|and", "", LINK.sub("", text)):
        yield Text(first, text)


def sentences(text: Text) -> Iterator[Text]:
    """Yields the sentences of a paragraph. A span of code is one word, and a link is its text."""
    position = 0
    for end in (*SENTENCE_END.finditer(text.text), None):
        sentence = text.text[position : end.start() if end else None]
        line = text.line + text.text.count("\n", 0, position)
        yield Text(line, SPAN.sub("`code`", LINK.sub(r"\1", sentence)))
        position = end.end() if end else position
