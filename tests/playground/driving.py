"""The page as a user drives it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.wait import TIMEOUT

T = TypeVar("T")


class Driven:
    """One browser on the page of one server."""

    def __init__(self, browser: Chrome, url: str, path: str = "/") -> None:
        self.browser = browser
        self.url = url
        browser.get(url + path)

    def until(self, found: Callable[[], T], seconds: float = TIMEOUT) -> T:
        value = WebDriverWait(self.browser, seconds, ignored_exceptions=[AssertionError]).until(lambda _: found())
        return value

    def ready(self) -> Driven:
        self.until(lambda: self.find("#model").text.startswith("unmask-demo"))
        return self

    def find(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    @property
    def status(self) -> str:
        return self.find("#status").text

    def ask(self, prompt: str) -> None:
        """Type a prompt and run it by keyboard."""
        field = self.find("#prompt")
        field.clear()
        field.send_keys(prompt, Keys.CONTROL + Keys.ENTER)

    def answered(self) -> None:
        self.until(lambda: self.status == "done")

    def answer(self, pane: int = 0) -> str:
        """The shown tokens' text; masks as `_`, special tokens left out."""
        script = """return [...arguments[0].children].map(cell => cell.classList.contains('mask') ? '_'
            : cell.classList.contains('special') ? '' : cell.textContent).join('')"""
        return str(self.browser.execute_script(script, self.all(".answer")[pane]))

    def kinds(self) -> list[str]:
        script = "return [...document.querySelectorAll('.answer .cell')].map(cell => cell.className)"
        return list(self.browser.execute_script(script))

    def figure(self, name: str, pane: int = 0) -> str:
        return self.all(".pane")[pane].find_element(By.CSS_SELECTOR, f"[data-figure='{name}']").text

    def keys(self, *keys: str) -> None:
        """Pressed on the answer."""
        self.find(".answer").send_keys(*keys)

    def hold(self, modifiers: str, key: str, times: int) -> None:
        actions = ActionChains(self.browser)
        for modifier in modifiers:
            actions = actions.key_down(modifier)
        for _ in range(times):
            actions = actions.send_keys(key)
        for modifier in modifiers:
            actions = actions.key_up(modifier)
        actions.perform()

    def look(self, name: str) -> None:
        """A screenshot for people, where UNMASK_SCREENSHOTS names a directory."""
        if directory := os.environ.get("UNMASK_SCREENSHOTS"):
            self.browser.save_screenshot(str(Path(directory) / f"{name}.png"))

    def complaints(self, *expected: str) -> list[str]:
        """What the browser's console holds, but for lines with one of these."""
        lines = [json.dumps(entry["message"]) for entry in self.browser.get_log("browser")]
        return [line for line in lines if not any(part in line for part in expected)]
