"""The page as a document: keys, hostile text, other hosts, path prefixes, keyboard and screen readers, API docs."""

import subprocess
import sys

import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.support.ui import Select

from tests.playground import axe
from tests.playground.conftest import KEY
from tests.playground.driver import Playground
from tests.playground.prefix_proxy import prefix_proxy
from tests.server.harness import ServerProcess
from tools.playground.browser import set_media, set_viewport

pytestmark = pytest.mark.browser
TABS = ("prompt", "chat", "structured", "tools", "infill")


def test_a_key_is_requested_before_any_error_and_stored_in_the_tab(browser: Chrome, locked: ServerProcess) -> None:
    page = Playground(browser, locked.url)
    page.until(lambda: page.find("#key-form").is_displayed())
    assert not page.is_error()
    assert not page.find(".live").is_enabled()
    assert not page.console()
    assert not axe.violations(browser)
    page.find("#key").send_keys(KEY, Keys.ENTER)
    page.ready()
    assert not page.find("#key-form").is_displayed()
    assert page.complete("What is 12 + 30?") == "12 + 30 = 42."
    page.find("#code summary").click()
    assert KEY not in page.find("#snippet").text
    assert "$UNMASK_API_KEY" in page.find("#snippet").text
    page.find("#change-key").click()
    page.find("#key").clear()
    page.find("#key").send_keys(KEY, Keys.ENTER)
    page.until(lambda: not page.find("#key-form").is_displayed())
    assert page.find("#prompt").get_attribute("value") == "What is 12 + 30?"
    browser.get(f"{locked.url}/docs")  # the same tab
    page.until(lambda: page.all(".opblock"))
    assert not page.console()


def test_a_wrong_key_can_be_replaced(browser: Chrome, locked: ServerProcess) -> None:
    page = Playground(browser, locked.url)
    page.until(lambda: page.find("#key-form").is_displayed())
    page.find("#key").send_keys("wrong-key-of-16-characters", Keys.ENTER)
    page.until(page.is_error)
    assert "does not accept this API key" in page.status
    page.find("#key").clear()
    page.find("#key").send_keys(KEY, Keys.ENTER)
    page.ready()
    assert not page.is_error()
    assert not page.console("401")


def test_hostile_text_is_text(page: Playground) -> None:
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script> 'x\" $(id) `id`"
    page.open_tab("chat")
    page.complete(f"Spell {hostile}.")
    page.complete("Hello!")
    page.find("[data-view='formatted']").click()
    page.find("#code summary").click()
    assert "<img" in page.find("#history .user").text
    assert "<script>" in page.find("#snippet").text
    assert not page.all("#history img, #history script, .pane img, .pane script")
    policy = page.script("return fetch('.').then(r => r.headers.get('content-security-policy'))")
    assert "script-src 'self';" in policy
    assert "style-src 'self';" in policy
    assert "default-src 'none'" in policy
    value = page.script(
        "const s = document.createElement('script'); s.textContent = 'window.executed = 1'; document.body.append(s);"
        "return window.executed"
    )
    assert value is None
    assert all("Content Security Policy" in line for line in page.console())


def test_the_request_as_code_works(page: Playground) -> None:
    page.find("summary").click()
    Select(page.find("[data-name='mode']")).select_by_visible_text("quality")
    page.find("#prompt").send_keys('Spell "lamp", it\'s short.')
    page.find("#code summary").click()
    curl = subprocess.run(["sh", "-c", page.find("#snippet").text], capture_output=True, text=True)
    assert "data: [DONE]" in curl.stdout, curl.stderr
    assert '"denoise"' in curl.stdout
    page.find("[data-language='python']").click()
    code = page.find("#snippet").text
    assert '"mode": "quality"' in code
    value = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert value.returncode == 0, value.stderr
    assert value.stdout.strip()


@pytest.mark.parametrize("tab", ["structured", "infill"])
def test_the_code_of_other_tabs_works(page: Playground, tab: str) -> None:
    page.open_tab(tab)
    page.find("#code summary").click()
    curl = subprocess.run(["sh", "-c", page.find("#snippet").text], capture_output=True, text=True)
    assert "data: [DONE]" in curl.stdout, curl.stderr
    page.find("[data-language='python']").click()
    value = subprocess.run([sys.executable, "-c", page.find("#snippet").text], capture_output=True, text=True)
    assert value.returncode == 0, value.stderr
    assert ("Oslo" if tab == "structured" else "Clara") in value.stdout


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation(page: Playground, theme: str) -> None:
    set_media(page.browser, prefers_color_scheme=theme)
    page.find(".steps").send_keys(Keys.HOME)
    page.set_step(page.steps() // 2)
    assert axe.violations(page.browser) == []
    for tab in TABS:
        page.open_tab(tab)
        page.complete("What is 36 x 24?" if tab in ("prompt", "chat") else None)
        for summary in page.all("summary"):
            if summary.is_displayed() and not page.script("return arguments[0].parentElement.open", summary):
                summary.click()
        assert axe.violations(page.browser) == [], tab
        page.find("[data-view='formatted']").click()
        assert axe.violations(page.browser) == [], tab


def test_axe_finds_no_violation_on_a_phone_with_an_error(page: Playground) -> None:
    set_viewport(page.browser, 390, 844)
    page.find("summary").click()
    page.find("[data-name='max_tokens']").send_keys("-5")
    page.run("What is 12 + 30?")
    page.until(page.is_error)
    assert axe.violations(page.browser) == []


def test_axe_finds_no_violation_in_a_comparison(page: Playground) -> None:
    page.find("#compare").click()
    page.complete("Spell giraffe.")
    assert axe.violations(page.browser) == []


def test_all_controls_are_reached_by_keyboard(page: Playground) -> None:
    page.script("document.activeElement.blur()")
    reached = []
    for _ in range(40):
        page.browser.switch_to.active_element.send_keys(Keys.TAB)
        element = page.browser.switch_to.active_element
        reached.append(element.get_attribute("id") or element.get_attribute("class"))
    assert {"theme", "tab-prompt", "prompt", "run", "compare", "answer", "play", "speed", "steps"} <= set(reached)


def test_the_theme_can_be_chosen_and_is_stored(page: Playground) -> None:
    def background() -> str:
        return str(page.script("return getComputedStyle(document.body).backgroundColor"))

    set_media(page.browser, prefers_color_scheme="light")
    light = background()
    page.find("#theme").click()
    dark = background()
    assert dark != light
    page.browser.refresh()
    page.ready()
    assert background() == dark


def test_the_page_requests_nothing_of_other_hosts(page: Playground) -> None:
    page.complete("What is 12 + 30?")
    loaded = page.script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert any(name.endswith("/playground/main.js") for name in loaded)
    assert all(name.startswith(page.url) for name in loaded)


def test_the_page_works_behind_a_path_prefix(browser: Chrome, demo: ServerProcess) -> None:
    with prefix_proxy(demo.port) as url:
        page = Playground(browser, url).ready()
        page.until(lambda: page.steps() > 0)
        assert page.complete("What is 12 + 30?") == "12 + 30 = 42."
        page.find("#code summary").click()
        assert f"{url}/v1/chat/completions" in page.find("#snippet").text
        browser.get(f"{url}/docs")
        page.until(lambda: len(page.all(".opblock")) > 5)
        assert not page.console()


def test_the_api_docs_need_no_other_host(browser: Chrome, demo: ServerProcess) -> None:
    page = Playground(browser, demo.url, "/docs")
    page.until(lambda: len(page.all(".opblock")) > 5)
    loaded = browser.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert loaded
    assert all(name.startswith((demo.url, "data:")) for name in loaded)
    assert not page.console()
