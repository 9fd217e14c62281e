"""Starts headless Chromium, for screenshots and for the browser tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

# The first two because tests run as root on machines without a display; the others prevent requests of Chromium itself.
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
