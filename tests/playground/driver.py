"""Drives the playground in a browser, as a user does."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.wait import TIMEOUT

T = TypeVar("T")


class Playground:
    """One browser on the page of one server."""

    def __init__(self, browser: Chrome, url: str, path: str = "/") -> None:
        self.browser = browser
        self.url = url
        browser.get(url + path)

    def until(self, condition: Callable[[], T], seconds: float = TIMEOUT) -> T:
        value = WebDriverWait(self.browser, seconds, ignored_exceptions=[AssertionError]).until(lambda _: condition())
        return value

    def ready(self) -> Playground:
        self.until(lambda: self.find("#model").text == "unmask-demo" and self.find("#run").is_enabled())
        return self

    def find(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def script(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    @property
    def status(self) -> str:
        return self.find("#status").text

    def is_error(self) -> bool:
        return "wrong" in (self.find("#status").get_attribute("class") or "")

    def open_tab(self, name: str) -> None:
        self.find(f"[data-tab='{name}']").click()

    def run(self, prompt: str | None = None) -> None:
        """Starts a run with the keyboard, after typing the prompt if there is one."""
        field = self.find("#prompt")
        if prompt is not None:
            field.clear()
            field.send_keys(prompt)
        field.send_keys(Keys.CONTROL + Keys.ENTER)

    def until_done(self) -> None:
        self.until(lambda: self.status == "Done" and self.find("#run").is_enabled())

    def complete(self, prompt: str | None = None) -> str:
        """Runs a prompt and returns the answer."""
        self.run(prompt)
        self.until_done()
        return self.answer()

    def answer(self, pane: int = 0) -> str:
        """Returns the text of the shown tokens; masks as `_`, without special tokens."""
        script = """return [...arguments[0].children].map(cell => cell.classList.contains('mask') ? '_'
            : cell.classList.contains('special') ? '' : cell.textContent).join('')"""
        return str(self.script(script, self.all(".answer")[pane]))

    def cells(self) -> list[str]:
        """Returns the classes of the shown tokens."""
        return list(self.script("return [...document.querySelectorAll('.answer .cell')].map(cell => cell.className)"))

    def steps(self, pane: int = 0) -> int:
        return int(self.all(".steps")[pane].get_attribute("max") or 0)

    def set_step(self, step: int) -> None:
        script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))"
        self.script(script, self.find(".steps"), step)

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
