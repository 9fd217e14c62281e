"""Finds dangling references in comments, docstrings and pages.

It checks:
* names of pages, with the anchor, the section numbers or, after a comma, the title of a heading that follows;
* paths in backticks, if they begin with a folder of the repository or end with ".py";
* dotted names in backticks or after "python -m", if they begin with a package of the repository;
* links of Markdown pages, with their anchors.

Records of the past (the changelog and the benchmarks) may name files that no longer exist. Of these only links are
checked.

`python -m tests.layout.references` prints the dangling references of the repository.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.layout.pages import SPAN, headings, pages, slugs, without_code, without_fences
from tests.layout.source import CODE, ROOT, Text, docstrings, python_files, read

RECORDS = ("CHANGELOG.md", "docs/benchmarks/")
# Files that do not exist: docs/developer/extending.md has them as examples.
EXAMPLES = {
    "runtime/models/twin.py",
    "runtime/parsers/bracketed.py",
    "runtime/algorithms/best_few.py",
    "runtime/strategies/single_bd.py",
    "runtime/strategies/counted_bd.py",
}
FOLDERS = (*CODE, "charts", "constraints", "crds", "docs", "examples")
ROOTS = ("runtime", "training", "unmask_operator", "tools", "tests", "e2e")
BASES = ("", "docs", "runtime", "operator", "operator/unmask_operator")

NUMBERS = r"\d+(?:\.\d+)*(?:(?:,|,?\s+and|\s+to)\s+\d+(?:\.\d+)*)*"
TITLE = r'"?([A-Z][^.;:)"]*)'
PAGE = re.compile(rf"(?<![\w/.*-])([\w./-]*\w\.md)\b(?:#([\w-]+)|`*,?\s+(?:sections?\s+)?({NUMBERS})|`*,\s+{TITLE})?")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"[\w.*-]+(?:/[\w.*-]+)+/?")
DOTTED = re.compile(rf"(?<![\w./-])(?:{'|'.join(ROOTS)})(?:\.[A-Za-z_]\w*)+")
COMMAND = re.compile(rf"-m\s+((?:{'|'.join(ROOTS)})(?:\.[A-Za-z_]\w*)+)")
CANDIDATE = re.compile(rf"\.md\b|`[^`\n]*(?:/|\b(?:{'|'.join(ROOTS)})\.)|-m\s+(?:{'|'.join(ROOTS)})\.")
SUFFIXES = ("md", "py", "toml", "yaml", "yml", "json", "txt", "sh", "go", "mjs")


@dataclass(frozen=True)
class Finding:
    """A reference to something that does not exist."""

    path: str  # of the file with the reference, from the root of the repository
    line: int
    reference: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reference} does not exist"


def find() -> list[Finding]:
    """Returns all dangling references of the repository."""
    found: list[Finding] = []
    for path in python_files():
        source = read(path)
        if CANDIDATE.search(source):
            for text in (*docstrings(source), *comments(source)):
                found += findings_in(path, text)
    for path in files_with_comments():
        for text in hash_comments(read(path)):
            found += findings_in(path, text)
    for path in pages():
        text = Text(1, read(path))
        found += broken_links(path, text)
        if not path.startswith(RECORDS):
            found += findings_in(path, text)
    return found


def comments(source: str) -> Iterator[Text]:
    """Yields blocks of comments. Consecutive lines are one block."""
    if not any("#" in line and CANDIDATE.search(line) for line in source.splitlines()):
        return
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    yield from _blocks((token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT)


def files_with_comments() -> list[str]:
    """Returns the checked files that are not Python. Their comments are lines that begin with a hash."""
    found = [ROOT / name for name in ("Makefile", "Dockerfile", "pyproject.toml", ".pre-commit-config.yaml")]
    found += [path for folder in ("charts", "examples") for path in (ROOT / folder).rglob("*.yaml")]
    return [path.relative_to(ROOT).as_posix() for path in found]


def hash_comments(content: str) -> Iterator[Text]:
    lines = enumerate(content.splitlines(), start=1)
    yield from _blocks((number, line.strip()) for number, line in lines if line.lstrip().startswith("#"))


def _blocks(comments: Iterable[tuple[int, str]]) -> Iterator[Text]:
    first, lines = 0, list[str]()
    for number, comment in comments:
        if number != first + len(lines):
            if lines:
                yield Text(first, "\n".join(lines))
            first, lines = number, []
        lines.append(comment.lstrip("#"))
    if lines:
        yield Text(first, "\n".join(lines))


def findings_in(path: str, text: Text) -> Iterator[Finding]:
    """Yields the dangling references in a text of the file `path`, except links."""
    for reference, position in references(text.text):
        if not resolves(reference, path):
            yield _finding(path, text, reference, position)


def broken_links(path: str, text: Text) -> Iterator[Finding]:
    for link in LINK.finditer(without_code(text.text)):
        target = link[1]
        if not re.match(r"[a-z]+:", target) and not link_resolves(target, path):
            yield _finding(path, text, target, link.start())


def _finding(path: str, text: Text, reference: str, position: int) -> Finding:
    return Finding(path, text.line + text.text.count("\n", 0, position), reference)


def references(text: str) -> Iterator[tuple[str, int]]:
    """Yields pages, paths and dotted names with their positions. A page includes its anchor, number or title."""
    prose = without_fences(text)
    for match in PAGE.finditer(LINK.sub(lambda link: "]" + " " * (len(link[0]) - 1), prose)):
        name, anchor, numbers, title = match.groups()
        if anchor:
            yield f"{name}#{anchor}", match.start()
        elif numbers:
            for number in re.findall(r"\d+(?:\.\d+)*", numbers):
                yield f"{name} {number}", match.start()
        elif title:
            yield f"{name}, {' '.join(title.split())}", match.start()
        else:
            yield name, match.start()
    for span in SPAN.finditer(prose):
        code = span[0].strip("`")
        for argument in code.split():
            name = argument.partition("::")[0]
            if PATH.fullmatch(name) and not name.endswith(".md") and _is_ours(name):
                yield name, span.start()
        for dotted in DOTTED.finditer(code):
            if dotted[0].rpartition(".")[2] not in SUFFIXES:
                yield dotted[0], span.start()
    for command in COMMAND.finditer(text):
        yield command[1], command.start()


def _is_ours(path: str) -> bool:
    """Distinguishes paths of the repository from others, such as media types and names of models on the Hub."""
    first = path.split("/")[0]
    placeholder = any(part.isupper() for part in re.split(r"[/.]", path))
    return (first in FOLDERS or path.endswith(".py")) and not placeholder


@cache
def resolves(reference: str, path: str) -> bool:
    """Returns whether the target of a reference in the file `path` exists."""
    name, _, title = reference.partition(", ")
    name, _, number = name.partition(" ")
    name, _, anchor = name.partition("#")
    if name in EXAMPLES:
        return True
    if name.endswith(".md"):
        page = _locate(name, path)
        if page is None or page.suffix != ".md":
            return False
        content = page.read_text(encoding="utf-8")
        if title:
            return any(title.startswith(heading) or heading.startswith(title) for heading in headings(content))
        if number:
            return any(re.match(rf"{re.escape(number)}(?![\d.]*\d)", heading) for heading in headings(content))
        return not anchor or anchor in slugs(content)
    if "/" in name:
        return _locate(name, path) is not None
    return _dotted_resolves(name)


@cache
def link_resolves(target: str, path: str) -> bool:
    """Returns whether the target file of a link in the page `path` exists and, if it is a page, has the anchor."""
    name, _, anchor = target.partition("#")
    file = (ROOT / path).parent / name if name else ROOT / path
    if not file.exists():
        return False
    return not anchor or file.suffix != ".md" or anchor in slugs(file.read_text(encoding="utf-8"))


def _locate(name: str, path: str) -> Path | None:
    for base in ((ROOT / path).parent, *(ROOT / base for base in BASES)):
        if next(base.glob(name), None) if "*" in name else (base / name).exists():
            return base / name
    return None


@cache
def _dotted_resolves(name: str) -> bool:
    """Returns whether a dotted name is a module, a name in one, or a member of a class in one."""
    parts = name.split(".")
    base = ROOT / "operator" if parts[0] == "unmask_operator" else ROOT
    for end in range(len(parts), 0, -1):
        stem = base.joinpath(*parts[:end])
        rest = parts[end:]
        file = next((file for file in (stem.with_suffix(".py"), stem / "__init__.py") if file.is_file()), None)
        if file is not None:
            return not rest or _has_member(file, rest)
        if stem.is_dir():
            return not rest
    return False


def _has_member(file: Path, names: list[str]) -> bool:
    """Returns whether a file has a name and, if that is a class without bases, the class has the next one."""
    members = _members(file)
    if names[0] not in members:
        return False
    inner = members[names[0]]
    return len(names) == 1 or inner is None or names[1] in inner


@cache
def _members(file: Path) -> dict[str, frozenset[str] | None]:
    """Returns the names at module level of a file. The value of a class without bases is the set of its members."""
    found: dict[str, frozenset[str] | None] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        for name in _names(node):
            closed = isinstance(node, ast.ClassDef) and not node.bases
            found[name] = frozenset(_all_names(node)) if closed else None
    return found


def _names(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.Import() | ast.ImportFrom():
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        case _:
            yield from _all_names(node)


def _all_names(node: ast.AST) -> Iterator[str]:
    for child in ast.walk(node):
        match child:
            case ast.alias():
                yield child.asname or child.name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.Name(id=name):
                yield name
            case ast.Attribute(attr=name):
                yield name


if __name__ == "__main__":
    dangling = find()
    for finding in dangling:
        print(finding)
    sys.exit(bool(dangling))
