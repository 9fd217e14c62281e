from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from tests.playground.driver import Playground
from tests.server.harness import ServerProcess, serving
from tools.playground.browser import chromium

KEY = "a-key-of-more-than-16-characters"


@pytest.fixture(scope="session")
def demo() -> Iterator[ServerProcess]:
    """Yields a server of the demo model, as `make serve` starts it."""
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def locked() -> Iterator[ServerProcess]:
    """Yields a server of the demo model with an API key."""
    with serving(env={"UNMASK_API_KEY": KEY}) as server:
        yield server


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    with chromium(tmp_path / "profile") as started:
        yield started


@pytest.fixture
def page(browser: webdriver.Chrome, demo: ServerProcess) -> Playground:
    """Returns the page of the demo model, ready for a prompt."""
    return Playground(browser, demo.url).ready()
