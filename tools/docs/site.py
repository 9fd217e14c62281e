"""Builds and checks the site of docs/ (`make docs`).

MkDocs loads this module as a hook (mkdocs.yml). It needs the standard library, MkDocs and Python-Markdown.

Pages link to files outside docs/, such as CONTRIBUTING.md and examples. The site has a page for each of these files, so
that links work without access to the repository.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
ICON = "runtime/server/playground/icon.svg"
COPIES = "repository"  # folder of the pages that show files outside docs/
LINK = re.compile(r"(\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+)\)")
FENCE = re.compile(r"^([ \t]*)(```|~~~).*?^[ \t]*\2[ \t]*$", re.MULTILINE | re.DOTALL)

CELL = re.compile(r"<td\b.*?</td>", re.DOTALL)
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
HEADER = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
CODE = re.compile(r"<code\b.*?</code>", re.DOTALL)
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s#]+)\.png\)")
MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def diagram_of(source: str) -> str:
    """Returns the picture of a Mermaid diagram, relative to docs/. `python -m tools.docs.diagrams` draws it."""
    return f"images/diagram-{hashlib.sha256(source.encode()).hexdigest()[:12]}.svg"


def with_diagrams(markdown: str, uri: str) -> str:
    """Replaces the diagrams of the page `uri` by their pictures, if they have been drawn."""

    def replace(found: re.Match[str]) -> str:
        picture = diagram_of(found[1])
        drawn = (ROOT / "docs" / picture).is_file()
        return f"![Diagram]({os.path.relpath(picture, os.path.dirname(uri) or '.')})" if drawn else found[0]

    return MERMAID.sub(replace, markdown)


def with_dark_pictures(markdown: str, uri: str) -> str:
    """Adds `NAME-dark.png` to each picture `NAME.png` of the page `uri`, if it exists. The theme shows one of the two.

    A page that shows the dark picture itself is not changed.
    """

    def replace(found: re.Match[str]) -> str:
        text, name = found.groups()
        dark = f"{name}-dark.png"
        there = Path(os.path.normpath(ROOT / "docs" / os.path.dirname(uri) / dark)).is_file()
        if not there or dark in markdown:
            return found[0]
        return f"![{text}]({name}.png#only-light)![{text}]({dark}#only-dark)"

    return PICTURE.sub(replace, markdown)


def with_log_class(markdown: str) -> str:
    """Gives blocks of the language `log` the class `log`. The highlighter drops the names of languages."""
    return re.sub(r"^```log$", "``` {.text .log}", markdown, flags=re.MULTILINE)


def without_escapes(page: str) -> str:
    """Replaces an escaped bar by a bar in code of table cells. The parser keeps the escape, which Markdown requires."""
    return CELL.sub(lambda cell: CODE.sub(lambda code: code[0].replace("\\|", "|"), cell[0]), page)


def with_labels(page: str) -> str:
    """Gives cells of wide tables of fields the label of their column. On phones each row becomes a list of cells.

    These tables have four columns or more. Their last column, which describes the field, would be off the screen.
    """

    def labelled(table: re.Match[str]) -> str:
        headers = HEADER.findall(table[0])
        if len(headers) < 4 or headers[-1] not in ("Description", "Meaning"):
            return table[0]

        def row(found: re.Match[str]) -> str:
            labels = iter(headers)
            return re.sub(r"<td\b", lambda cell: f'{cell[0]} data-label="{next(labels)}"', found[0])

        return ROW.sub(row, table[0])

    return TABLE.sub(labelled, page)


def slug(heading: str, separator: str = "-") -> str:
    """Returns the anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def copy_of(path: str) -> str:
    """Returns the page in docs/ that shows the file `path` of the repository."""
    return f"{COPIES}/{path}" if path.endswith(".md") else f"{COPIES}/{path}.md"


def links(markdown: str, path: str) -> dict[str, str]:
    """Returns the local links of the page `path`, each with the path that it leads to, both without anchors."""
    found = {}
    for match in LINK.finditer(FENCE.sub("", markdown)):
        target = match[2].partition("#")[0]
        if target and not re.match(r"[a-z]+:", target):
            found[target] = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return found


def with_site_links(markdown: str, path: str) -> str:
    """Links a page to the copies of files outside docs/. Links to folders become text."""
    here = os.path.dirname(path.removeprefix("docs/") if path.startswith("docs/") else copy_of(path))

    def replace(match: re.Match[str]) -> str:
        text, address = match.groups()
        target, _, anchor = address.partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        file = os.path.normpath(os.path.join(os.path.dirname(path), target))
        if (ROOT / file).is_dir():
            return text[1:-1]
        relative = os.path.relpath(
            file.removeprefix("docs/") if file.startswith("docs/") else copy_of(file), here or "."
        )
        return f"{text}({relative}{f'#{anchor}' if anchor else ''})"

    pieces, position = [], 0
    for begin, end in [*(match.span() for match in FENCE.finditer(markdown)), (len(markdown), len(markdown))]:
        pieces += [LINK.sub(replace, markdown[position:begin]), markdown[begin:end]]
        position = end
    return "".join(pieces)


def outside(pages: Iterable[str]) -> list[str]:
    """Returns all files outside docs/ to which the pages, or copies of such files, link."""
    waiting, found = list(pages), set[str]()
    while waiting:
        path = waiting.pop()
        for target in links((ROOT / path).read_text(encoding="utf-8"), path).values():
            if target not in found and not target.startswith("docs/") and (ROOT / target).is_file():
                found.add(target)
                if target.endswith(".md"):
                    waiting.append(target)
    return sorted(found)


def copied_text(path: str) -> str:
    """Returns the Markdown of the page that shows the file `path`."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    return f"# {path}\n\n```{path.rpartition('.')[2]}\n{text.rstrip()}\n```\n"


def benchmarks() -> str:
    """Returns the Markdown of a page with links to all records of measurements, the newest first."""
    lines = ["# Benchmarks", "", "Records of measurements, the newest first.", ""]
    for page in sorted((ROOT / "docs" / "benchmarks").glob("*.md"), reverse=True):
        title = re.search(r"^# (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        lines.append(f"* [{title[1] if title else page.stem}]({page.name})")
    return "\n".join([*lines, ""])


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Sets what mkdocs.yml cannot: anchors as on GitHub, lists that are indented by two spaces."""
    from markdown import Extension, Markdown

    class TwoSpaces(Extension):  # type: ignore[misc]
        def extendMarkdown(self, md: Markdown) -> None:
            md.tab_length = 2

    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    config.markdown_extensions.append(TwoSpaces())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for every file outside docs/ to which a page links, the list of benchmarks, and the icon."""
    from mkdocs.structure.files import File

    for path in outside(f"docs/{file.src_uri}" for file in files.documentation_pages()):
        files.append(File.generated(config, copy_of(path), content=copied_text(path)))
    files.append(File.generated(config, "benchmarks/index.md", content=benchmarks()))
    files.append(File.generated(config, "images/icon.svg", abs_src_path=str(ROOT / ICON)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites the links, pictures and logs of a page for the site."""
    uri = page.file.src_uri
    path = uri.removeprefix(f"{COPIES}/") if uri.startswith(f"{COPIES}/") else f"docs/{uri}"
    markdown = with_log_class(with_dark_pictures(with_diagrams(markdown, uri), uri))
    return with_site_links(markdown, path if (ROOT / path).exists() else path.removesuffix(".md"))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Corrects the code in tables of a page, and labels the cells of tables of fields."""
    return with_labels(without_escapes(html))


class _Requests(HTMLParser):
    """Collects the addresses that a browser requests to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        keys = ("href",) if tag == "link" and values.get("rel") != "canonical" else ("src", "srcset", "data", "poster")
        self.found += [value for key in keys if (value := values.get(key))]


def foreign_requests(site: Path) -> list[str]:
    """Returns the requests of the built pages and style sheets to other hosts."""
    found = []
    for file in sorted(site.rglob("*")):
        if file.suffix == ".html":
            parser = _Requests()
            parser.feed(file.read_text(encoding="utf-8"))
            addresses = parser.found
        elif file.suffix == ".css":
            addresses = re.findall(r"url\([\"']?([^)\"']+)", file.read_text(encoding="utf-8"))
        else:
            continue
        found += [f"{file}: {address}" for address in addresses if re.match(r"(https?:)?//", address)]
    return found


def escaped_cells(site: Path) -> list[str]:
    """Returns the table cells of the built pages whose code has an escaped bar."""
    found = []
    for file in sorted(site.rglob("*.html")):
        for cell in CELL.findall(file.read_text(encoding="utf-8")):
            found += [f"{file}: {code}" for code in CODE.findall(cell) if "\\|" in code]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tools.docs.site", description="Checks the built site.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    faults = foreign_requests(folder) + escaped_cells(folder)
    print(*(faults or [f"open {folder / 'index.html'}"]), sep="\n")
    sys.exit(bool(faults))
