"""Headless Chromium and the playground in it, for screenshots and for the browser tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

T = TypeVar("T")

# The first two are needed because tests run as root on machines without a display. Most others prevent requests of
# Chromium itself.
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


@contextmanager
def chromium(profile: Path, size: tuple[int, int] = (1200, 900), *flags: str) -> Iterator[webdriver.Chrome]:
    """Starts a browser with a profile of its own.

    Args:
        profile: directory of the profile.
        size: width and height of the window in pixels.
        flags: further flags of Chromium.
    """
    options = Options()
    for flag in (*FLAGS, *flags, f"--window-size={size[0]},{size[1]}", f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or "chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver") or "chromedriver"))
    try:
        yield browser
    finally:
        browser.quit()


def set_viewport(browser: webdriver.Chrome, width: int, height: int, scale: float = 1.0) -> None:
    """Sets the size of the page in CSS pixels, also below the minimum width of a window."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def set_media(browser: webdriver.Chrome, **features: str) -> None:
    """Emulates media features, such as ``prefers_color_scheme="dark"``."""
    listed = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": listed})


class PlaygroundDriver:
    """Drives the playground of one server in one browser.

    Attributes:
        wait_seconds: limit of each wait.
    """

    wait_seconds = 60.0

    def __init__(self, browser: webdriver.Chrome, url: str) -> None:
        self.browser = browser
        self.url = url

    def until(self, condition: Callable[[], T], seconds: float | None = None) -> T:
        """Waits until `condition` returns a true value, and returns it. Failed assertions count as false."""
        wait = WebDriverWait(self.browser, seconds or self.wait_seconds, ignored_exceptions=[AssertionError])
        return wait.until(lambda _: condition())

    def find(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def script(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    @property
    def status(self) -> str:
        return self.find("#status").text

    def run(self, prompt: str | None = None) -> None:
        """Starts a run with the keyboard, after typing the prompt if there is one."""
        field = self.find("#prompt")
        if prompt is not None:
            field.clear()
            field.send_keys(prompt)
        field.send_keys(Keys.CONTROL + Keys.ENTER)

    def until_done(self) -> None:
        self.until(lambda: self.status == "Done" and self.find("#run").is_enabled())

    def run_until_done(self, prompt: str | None = None) -> None:
        self.run(prompt)
        self.until_done()

    def steps(self, pane: int = 0) -> int:
        """Returns the number of steps of a pane's answer."""
        return int(self.all(".steps")[pane].get_attribute("max") or 0)

    def set_step(self, step: int) -> None:
        script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))"
        self.script(script, self.find(".steps"), step)
