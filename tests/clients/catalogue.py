"""The list of clients, one per folder in this package."""

import re
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FOLDER = Path(__file__).parent
SERVERS = ("demo", "scripted")  # what a client runs against: the demo model, or a server with scripted answers
KINDS = ("basic", "streaming", "structured", "tools", "more")  # of checks, in the table's order
LOCKS = {"python": "lock.txt", "node": "package-lock.json", "go": "go.sum"}  # by the language of the client's script


@dataclass(frozen=True)
class Client:
    """A third-party client: its title, its package, and the kinds of checks in its script.

    Its folder has a lock (names, versions, hashes) and a script ``client.py``, ``client.mjs`` or ``client.go``;
    `requires` are the packages that a Python client's lock is resolved from. `server`: see `SERVERS`.
    """

    folder: Path
    title: str
    package: str
    covers: tuple[str, ...]
    requires: tuple[str, ...] = ()
    server: str = "demo"

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def language(self) -> str:
        (found,) = (language for language, lock in LOCKS.items() if (self.folder / lock).exists())
        return found

    @property
    def lock(self) -> Path:
        return self.folder / LOCKS[self.language]

    @cached_property
    def version(self) -> str:
        """Returns the version of the client's package in its lock."""
        package, text = re.escape(self.package), self.lock.read_text(encoding="utf-8")
        found = {
            "python": rf"^{package}==(\S+)",
            "node": rf'"node_modules/{package}": {{\s*"version": "([^"]+)"',
            "go": rf"^{package} v(\S+) ",
        }[self.language]
        return re.findall(found, text, re.MULTILINE)[0]


def client(folder: Path) -> Client:
    declared = tomllib.loads((folder / "client.toml").read_text(encoding="utf-8"))
    wrong = set(declared["covers"]) - set(KINDS)
    assert not wrong, f"{folder.name}: `covers` has unknown kinds {wrong}; the kinds are {KINDS}"
    server = declared.get("server", "demo")
    assert server in SERVERS, f"{folder.name}: `server` is {server!r} and must be one of {SERVERS}"
    requires = tuple(declared.get("requires", ()))
    return Client(folder, declared["title"], declared["package"], tuple(declared["covers"]), requires, server)


def clients() -> list[Client]:
    """Returns all clients, sorted by name."""
    return [client(path.parent) for path in sorted(FOLDER.glob("*/client.toml"))]


def table() -> str:
    """Returns the list of clients in docs/guide/clients.md, in Markdown."""
    lines = [f"| client | version | {' | '.join(KINDS)} |", f"|---|---|{'---|' * len(KINDS)}"]
    for one in sorted(clients(), key=lambda one: one.title.lower()):
        marks = " | ".join("yes" if kind in one.covers else "" for kind in KINDS)
        lines.append(f"| {one.title} | {one.version} | {marks} |")
    return "\n".join(lines)


def with_table(page: str) -> str:
    """Returns a page with the current list of clients."""
    head = re.escape(table().splitlines()[0])
    return re.sub(rf"{head}\n(?:\|.*\n)*", lambda _: f"{table()}\n", page)
