from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from tests.playground.driving import Driven
from tests.server.harness import ServerProcess, serving

KEY = "a-key-of-more-than-16-characters"

# the first two because the tests run as root in machines without a display; the others keep Chromium off the network
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,900",
)


@pytest.fixture(scope="session")
def demo() -> Iterator[ServerProcess]:
    """The demo model, as `make serve` serves it."""
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def locked() -> Iterator[ServerProcess]:
    """The same behind a key."""
    with serving(env={"UNMASK_API_KEY": KEY}) as server:
        yield server


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    options = Options()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or "chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver") or "chromedriver"))
    try:
        yield chrome
    finally:
        chrome.quit()


@pytest.fixture
def page(browser: webdriver.Chrome, demo: ServerProcess) -> Driven:
    """The page over the demo model, ready to be asked."""
    return Driven(browser, demo.url).ready()
