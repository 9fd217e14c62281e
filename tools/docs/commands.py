"""Lists the commands of pages with how they are tested: ``python -m tools.docs.commands [PAGE...]``.

Without pages it lists those commands of all pages that no test runs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SERVER = "http://127.0.0.1:8000"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The first words of commands, how tests treat them, and why they do not run them.
TREATMENTS = {
    r"curl (-N )?http://127\.0\.0\.1:8000/": "run",
    r"make serve ARGS=|.*python -m (runtime\.server|(runtime|tools)\.bench)\b": "parsed",
    r".*python -m training\.demo\.held_out ": "tests/training writes such a file",
    r"(\.venv/bin/)?unmask (fit|pull|serve|verify) ": "needs the hub; tests/commands runs these with a stub",
    r"unmask models\b": "tests/commands runs it",
    r"python authors_logits\.py ": "needs published code; tests/commands runs it with code of tests",
    r"make ": "target exists",
    r"(velero|.*kubectl|.*helm|kind|minikube|for child in|wait -n)\b": "needs a cluster",
    r"docker ": "needs Docker",
    r"python3 -m venv |unmask-venv/bin/": "tests/test_package.py installs without the network",
    r"openapi-python-client ": "run by make clients",
}
ABSENT = ("/adapters/legal", '"legal"')  # adapters that no checkout has


@dataclass(frozen=True)
class Command:
    """A command of a page.

    Attributes:
        page: path of the page.
        text: the command without its comment, in one line unless a quoted argument or a loop has several.
        treatment: "run", "parsed", "target exists", or why no test runs it.
    """

    page: str
    text: str
    treatment: str


def treatment(text: str) -> str:
    if any(name in text for name in ABSENT) and text.startswith("curl"):
        return "needs an adapter"
    return next((found for pattern, found in TREATMENTS.items() if re.match(pattern, text, re.DOTALL)), "unknown")


def split_commands(block: str) -> Iterator[str]:
    """Splits a block of shell commands. A quoted argument or a loop may have several lines."""
    pending = ""
    for line in re.sub(r"(^|\s+)# .*$", "", re.sub(r"\s*\\\n\s*", " ", block), flags=re.MULTILINE).splitlines():
        pending = f"{pending}\n{line}" if pending else line
        quotes = pending.replace("\\'", "").replace('\\"', "")
        loop = pending.startswith("for ") and not pending.endswith("done")
        if loop or quotes.count("'") % 2 or re.sub(r"'[^']*'", "", quotes).count('"') % 2:
            continue
        if pending.strip():
            yield pending
        pending = ""


def commands(page: str) -> list[Command]:
    blocks = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    return [Command(page, text, treatment(text)) for block in blocks for text in split_commands(block)]


def pages() -> list[str]:
    """Returns the README and all pages of docs/, except records of measurements."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    return ["README.md", *(f"{page.relative_to(ROOT)}" for page in found if page.parent.name != "benchmarks")]


if __name__ == "__main__":
    for page in sys.argv[1:] or pages():
        for command in commands(page):
            if sys.argv[1:] or command.treatment != "run":
                print(f"{command.page}: {command.treatment}: {command.text}")
