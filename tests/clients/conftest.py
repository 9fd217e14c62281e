"""Servers for all clients, with an API key, and a table of the checks that were run."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.clients.catalogue import KINDS, Client
from tests.server.checkpoint import write_checkpoint
from tests.server.harness import SCRIPTED, ServerProcess, serving

KEY = "a-key-of-more-than-16-characters"


@dataclass(frozen=True)
class Check:
    """Outcome of one check, as a client's script reports it."""

    kind: str
    name: str
    error: str | None
    seconds: float


@dataclass
class Tried:
    """The checks of each client that was run, and its total seconds."""

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


class Servers:
    """The servers that clients run against, with an API key. Each is started when it is first needed."""

    def __init__(self, stack: ExitStack, model: Path) -> None:
        self._stack = stack
        self._model = model
        self._running: dict[str, ServerProcess] = {}

    def get(self, name: str) -> ServerProcess:
        """Returns the server with this name, see `SERVERS`."""
        if name not in self._running:
            self._running[name] = self._stack.enter_context(self._serving(name))
        return self._running[name]

    def _serving(self, name: str) -> AbstractContextManager[ServerProcess]:
        variables = {"UNMASK_API_KEY": KEY}
        if name == "demo":  # the server of `make serve`
            return serving(env=variables)
        # Agents send prompts of about 40,000 characters, and this model has one token per character.
        lengths = ("--max-model-len", "262144", "--num-pages", "65536")
        names = ("--served-model-name", "unmask-demo", "--tool-call-parser", "hermes")
        return serving("--model", str(self._model), *lengths, *names, module=SCRIPTED, env=variables)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    model = write_checkpoint(tmp_path_factory.mktemp("models") / "tagged", tagged=True)
    with ExitStack() as stack:
        yield Servers(stack, model)
