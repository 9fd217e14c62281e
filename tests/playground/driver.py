"""Drives the playground in a browser, as a user does."""

from __future__ import annotations

import json

from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By

from tests.wait import TIMEOUT
from tools.playground.browser import PlaygroundDriver


class Playground(PlaygroundDriver):
    """One browser on the page of one server."""

    wait_seconds = TIMEOUT

    def __init__(self, browser: Chrome, url: str, path: str = "/") -> None:
        super().__init__(browser, url)
        browser.get(url + path)

    def ready(self) -> Playground:
        self.until(lambda: self.find("#model").text == "unmask-demo" and self.find("#run").is_enabled())
        return self

    def is_error(self) -> bool:
        return "wrong" in (self.find("#status").get_attribute("class") or "")

    def open_tab(self, name: str) -> None:
        self.find(f"[data-tab='{name}']").click()

    def complete(self, prompt: str | None = None) -> str:
        """Runs a prompt and returns the answer."""
        self.run_until_done(prompt)
        return self.answer()

    def answer(self, pane: int = 0) -> str:
        """Returns the text of the shown tokens; masks as `_`, without special tokens."""
        script = """return [...arguments[0].children].map(cell => cell.classList.contains('mask') ? '_'
            : cell.classList.contains('special') ? '' : cell.textContent).join('')"""
        return str(self.script(script, self.all(".answer")[pane]))

    def cells(self) -> list[str]:
        """Returns the classes of the shown tokens."""
        return list(self.script("return [...document.querySelectorAll('.answer .cell')].map(cell => cell.className)"))

    def figure(self, name: str, pane: int = 0) -> str:
        return self.all(".pane")[pane].find_element(By.CSS_SELECTOR, f"[data-figure='{name}']").text

    def hold(self, modifiers: str, key: str, times: int = 1) -> None:
        """Presses a key several times while modifiers are held."""
        actions = ActionChains(self.browser)
        for modifier in modifiers:
            actions = actions.key_down(modifier)
        for _ in range(times):
            actions = actions.send_keys(key)
        for modifier in modifiers:
            actions = actions.key_up(modifier)
        actions.perform()

    def console(self, *expected: str) -> list[str]:
        """Returns the messages of the browser's console, except those with an expected part."""
        lines = [json.dumps(entry["message"]) for entry in self.browser.get_log("browser")]
        return [line for line in lines if not any(part in line for part in expected)]
