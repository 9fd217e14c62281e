"""Reads Markdown pages: their headings, their code, and their text without code."""

import re
from functools import cache
from pathlib import Path

from tests.layout.source import CODE, ROOT, read

FENCE = re.compile(r"^([ \t]*)(```|~~~).*?^[ \t]*\2[ \t]*$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\](?:\([^)\s]*\)|\[[^\]]*\])")
SPAN = re.compile(r"(?<!`)(`+)(?!`)(?:(?!\n[ \t]*\n).)+?(?<!`)\1(?!`)", re.DOTALL)  # within one paragraph


@cache
def pages() -> tuple[str, ...]:
    """Returns the paths of all pages, relative to the root: at the root, in docs/, in charts/ and in the packages."""
    folders = ("docs", "charts", *CODE)
    found = [*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*.md"))]
    return tuple(sorted(path.relative_to(ROOT).as_posix() for path in found))


def code(page: str | Path, language: str) -> list[str]:
    """Returns the fenced code of a language on a page."""
    return re.findall(rf"```{language}\n(.*?)```", read(page), re.DOTALL)


def without_fences(text: str) -> str:
    """Blanks fenced code; every character keeps its position."""
    return blank(FENCE, text)


def without_code(text: str) -> str:
    """Blanks fenced code and spans of code; every character keeps its position."""
    return blank(SPAN, without_fences(text))


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


def blank(expression: re.Pattern[str], text: str) -> str:
    return expression.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
