"""The page in a browser: ask, watch, go back through the steps, compare, fill anew, and what goes wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.support.ui import Select

from tests.playground.conftest import KEY
from tests.playground.driving import Driven
from tests.server.harness import ServerProcess

pytestmark = pytest.mark.browser
STORY = "Tell a story about Clara, a fox and a castle."


def test_an_answer_and_its_figures(page: Driven) -> None:
    page.ask("What is 12 + 30?")
    page.answered()
    assert page.answer() == "12 + 30 = 42."
    tokens, forwards = int(page.figure("tokens")), int(page.figure("forwards"))
    assert page.figure("tokens per forward") == f"{tokens / forwards:.2f}"
    assert page.figure("ended by") == "stop"
    assert {kind.split()[1] for kind in page.kinds()} == {"stable"}
    assert not page.complaints()


def test_the_steps_are_gone_through_by_slider_keys_and_replay(page: Driven) -> None:
    page.ask(STORY)
    page.answered()
    answer, steps = page.answer(), int(page.find(".steps").get_attribute("max") or 0)
    assert steps > 5
    assert "Clara" in answer
    page.keys(*[Keys.ARROW_LEFT] * (steps // 2))
    half = page.answer()
    assert half.count("_") > 0
    assert any("draft" in kind for kind in page.kinds())
    assert any("fresh" in kind for kind in page.kinds())
    assert len(half.replace("_", "")) < len(answer)
    page.look("replay")
    page.find(".steps").send_keys(Keys.HOME)
    assert page.answer() == ""
    page.find(".play").click()
    page.until(lambda: page.answer() == answer)
    page.until(lambda: page.find(".play").text == "Play")
    assert not page.complaints()


def test_two_settings_side_by_side(page: Driven) -> None:
    page.find("#compare").click()
    panes = page.all(".pane")
    assert len(panes) == 2
    assert panes[1].find_element("css selector", "summary").text == "Settings: mode speed"
    panes[0].find_element("css selector", "summary").click()
    Select(panes[0].find_element("css selector", "[data-name='algorithm']")).select_by_visible_text("sequential")
    assert page.all("summary")[0].text == "Settings: algorithm sequential"
    page.ask("Write the times table of 7 up to 9.")
    page.answered()
    assert page.answer(0) == page.answer(1) == "\n".join(f"7 x {i} = {7 * i}" for i in range(1, 10))
    assert float(page.figure("tokens per forward", 0)) <= 1 < float(page.figure("tokens per forward", 1))
    page.look("compare")
    page.find("#compare").click()
    assert len(page.all(".pane")) == 1
    assert not page.complaints()


def test_a_selection_is_filled_anew(page: Driven) -> None:
    page.ask("What is 12 + 30?")
    page.answered()
    before = page.answer()
    index = next(i for i, kind in enumerate(page.all(".answer .cell")) if kind.text == "4")
    page.find(".answer").click()
    page.hold(Keys.SHIFT, Keys.ARROW_RIGHT, index + 2)
    page.hold(Keys.SHIFT + Keys.CONTROL, Keys.ARROW_RIGHT, index)
    assert page.find(".marked-tokens").text == "2 tokens"
    page.hold(Keys.SHIFT + Keys.CONTROL, Keys.ARROW_RIGHT, 1)
    assert page.find(".marked-tokens").text == "1 token"
    page.look("refill")
    page.find(".fill").click()
    page.until(lambda: page.status == "done" and page.figure("ended by") == "filled")
    assert page.answer() == before  # one right digit
    page.find(".steps").send_keys(Keys.HOME)
    assert page.answer() == "12 + 30 = 4_."
    assert not page.complaints()


def test_a_conversation_goes_on(page: Driven) -> None:
    page.find("#follow").click()
    page.ask("What is 12 + 30?")
    page.answered()
    page.ask("And times two?")
    page.until(lambda: len(page.all("#history p")) == 4)
    assert [line.text for line in page.all("#history p")][-1] == "42 x 2 = 84."
    page.find("#forget").click()
    assert not page.find("#history").is_displayed()


def test_a_refusal_is_the_servers_sentence(page: Driven) -> None:
    page.find("summary").click()
    page.find("[data-name='max_tokens']").send_keys("-1")
    page.ask("What is 12 + 30?")
    page.until(lambda: "wrong" in (page.find("#status").get_attribute("class") or ""))
    assert "max_tokens" in page.status
    assert "-1" in page.status
    assert page.find("#run").is_enabled()


def test_hostile_text_is_text(page: Driven) -> None:
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script> 'x\" $(id) `id`"
    page.find("#follow").click()
    page.ask(f"Spell {hostile}.")
    page.answered()
    page.find("#code summary").click()
    assert "<img" in page.find("#history .user").text
    assert "<script>" in page.find("#snippet").text
    assert not page.all("#history img, #history script, .answer img, .answer script")
    policy = page.browser.execute_script("return fetch('.').then(r => r.headers.get('content-security-policy'))")
    assert "script-src 'self';" in policy
    assert "default-src 'none'" in policy
    value = page.browser.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s);"
        "return window.ran"
    )
    assert value is None
    assert all("Content Security Policy" in line for line in page.complaints())


def test_the_request_as_code_works(page: Driven) -> None:
    page.find("summary").click()
    Select(page.find("[data-name='mode']")).select_by_visible_text("quality")
    page.find("#prompt").send_keys('Spell "lamp", it\'s short.')
    page.find("#code summary").click()
    asked = subprocess.run(["sh", "-c", page.find("#snippet").text], capture_output=True, text=True)
    assert "data: [DONE]" in asked.stdout, asked.stderr
    assert '"denoise"' in asked.stdout
    page.find("[data-language='python']").click()
    code = page.find("#snippet").text
    assert '"mode": "quality"' in code
    value = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert value.returncode == 0, value.stderr
    assert value.stdout.strip()


def test_a_key_is_requested_and_stored_in_the_tab(browser: Chrome, locked: ServerProcess) -> None:
    page = Driven(browser, locked.url)
    page.until(lambda: page.find("#key-form").is_displayed())
    assert "key" in page.status
    page.find("#key").send_keys(KEY, Keys.ENTER)
    page.ready()
    assert not page.find("#key-form").is_displayed()
    page.ask("What is 12 + 30?")
    page.answered()
    assert page.answer() == "12 + 30 = 42."
    page.find("#code summary").click()
    assert KEY not in page.find("#snippet").text
    assert "$UNMASK_API_KEY" in page.find("#snippet").text
    browser.get(f"{locked.url}/docs")  # the same tab
    page.until(lambda: page.all(".opblock"))
    assert not page.complaints("401")


def test_small_dark_and_by_keyboard_alone(page: Driven) -> None:
    page.browser.set_window_size(400, 800)
    width = page.browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1]  # nothing to scroll sideways
    page.find("#theme").click()
    assert page.browser.execute_script("return document.documentElement.dataset.theme") in ("dark", "light")
    page.look("small")
    page.browser.execute_script("document.activeElement.blur()")
    reached = []
    for _ in range(40):
        page.browser.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(page.browser.switch_to.active_element.get_attribute("id"))
    assert {"theme", "prompt", "run", "compare", "follow"} <= set(reached)


def test_the_interface_is_described_without_another_host(browser: Chrome, demo: ServerProcess) -> None:
    page = Driven(browser, demo.url, "/docs")
    page.until(lambda: len(page.all(".opblock")) > 5)
    loaded = browser.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert loaded
    assert all(name.startswith((demo.url, "data:")) for name in loaded)
    assert not page.complaints()
