"""One demo server for all clients, behind a key, and a table of what they tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.clients.catalogue import KINDS, Client
from tests.server.harness import ServerProcess, serving

KEY = "a-key-of-more-than-16-characters"


@dataclass(frozen=True)
class Check:
    """What a client's script tells of one check."""

    kind: str
    name: str
    error: str | None
    seconds: float


@dataclass
class Tried:
    """The checks of each client that was run, and the seconds it took in all."""

    runs: list[tuple[Client, list[Check], float]] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield f"{'client':30} {'version':>10} {'seconds':>8}  " + " ".join(f"{kind:>10}" for kind in KINDS)
        for client, checks, seconds in self.runs:
            cells = []
            for kind in KINDS:
                mine = [check for check in checks if check.kind == kind]
                passed = sum(check.error is None for check in mine)
                cells.append(f"{f'{passed}/{len(mine)}' if mine else '':>10}")
            yield f"{client.title:30} {client.version:>10} {seconds:8.1f}  {' '.join(cells)}"


TRIED = pytest.StashKey[Tried]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TRIED] = Tried()


@pytest.fixture(scope="session")
def tried(pytestconfig: pytest.Config) -> Tried:
    return pytestconfig.stash[TRIED]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[TRIED].runs:
        terminalreporter.section("clients: checks that passed, of those that there are")
        for line in config.stash[TRIED].lines():
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def demo() -> Iterator[ServerProcess]:
    """The demo model, as `make serve` serves it, behind a key."""
    with serving(env={"UNMASK_API_KEY": KEY}) as server:
        yield server
