"""An answer on the page: the recorded one, a live one, its steps, its tokens and its formatted view."""

import json
from importlib.resources import files
from typing import Any

import pytest
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.support.ui import Select

from tests.playground.driver import Playground
from tests.server.harness import ServerProcess
from tools.playground.browser import set_media, set_viewport

pytestmark = pytest.mark.browser
STORY = "Tell a story about Clara and a fox."


def recording() -> Any:
    return json.loads(files("runtime.server.playground").joinpath("recording.json").read_text(encoding="utf-8"))


def test_the_page_denoises_a_recorded_story_on_load(page: Playground) -> None:
    recorded = recording()
    assert recorded["prompt"] in page.find(".caption").text
    assert page.steps() == len(recorded["steps"]) >= 10
    page.until(page.answer)  # at step 0 the key would change nothing, and the story would keep playing
    page.find(".steps").send_keys(Keys.HOME)
    assert page.answer() == ""
    page.find(".steps").send_keys(Keys.END)
    assert page.answer() == recorded["text"]
    assert not page.console()


def test_the_recorded_story_plays_by_itself(page: Playground) -> None:
    page.until(lambda: page.answer() == recording()["text"])
    page.until(lambda: page.find(".play").text == "Play")


def test_the_recorded_story_can_be_run_live(page: Playground) -> None:
    page.find(".live").click()
    page.until_done()
    assert page.find("#prompt").get_attribute("value") == recording()["prompt"]
    assert page.answer().count("\n") == 5
    assert not page.find(".live").is_displayed()


def test_the_recording_does_not_move_for_users_who_prefer_reduced_motion(browser: Chrome, demo: ServerProcess) -> None:
    set_media(browser, prefers_reduced_motion="reduce")
    page = Playground(browser, demo.url)
    page.until(lambda: page.steps() > 0)
    assert page.answer() == recording()["text"]
    assert page.find(".play").text == "Play"


def test_an_answer_and_its_figures(page: Playground) -> None:
    assert page.complete("What is 12 + 30?") == "12 + 30 = 42."
    tokens, steps = int(page.figure("tokens")), int(page.figure("steps"))
    assert page.figure("tokens per step") == f"{tokens / steps:.2f}"
    assert page.figure("finish") == "stop"
    assert {kind.split()[1] for kind in page.cells()} == {"stable"}
    assert not page.console()


def test_tokens_have_the_color_of_their_step(page: Playground) -> None:
    page.complete(STORY)
    colors = [name for kind in page.cells() for name in kind.split() if name[0] == "s" and name[1:].isdigit()]
    assert len(colors) == len(page.cells())
    assert len(set(colors)) > 3
    assert all("fresh" in kind for kind in page.cells() if "s9" in kind.split())


def test_the_finished_answer_has_no_backgrounds(page: Playground) -> None:
    page.complete(STORY)
    script = "return getComputedStyle(document.querySelector('.answer .cell')).backgroundColor"
    page.until(lambda: page.script(script) == "rgba(0, 0, 0, 0)")
    assert page.script("return getComputedStyle(document.querySelector('.answer .cell')).fontWeight") == "400"
    page.set_step(page.steps() - 1)
    page.until(lambda: page.script(script) != "rgba(0, 0, 0, 0)")


def test_the_steps_can_be_scrubbed_and_replayed(page: Playground) -> None:
    answer, steps = page.complete(STORY), page.steps()
    assert steps >= 10
    assert "Clara" in answer
    page.set_step(steps // 2)
    half = page.answer()
    assert half.count("_") > 0
    assert any("draft" in kind for kind in page.cells())
    assert any("fresh" in kind for kind in page.cells())
    assert len(half.replace("_", "")) < len(answer)
    page.find(".steps").send_keys(Keys.HOME)
    assert page.answer() == ""
    Select(page.find(".speed")).select_by_visible_text("4×")
    page.find(".play").click()
    page.until(lambda: page.answer() == answer)
    page.until(lambda: page.find(".play").text == "Play")
    assert not page.console()


def test_a_token_shows_step_confidence_and_runner_up(page: Playground) -> None:
    page.complete(STORY)
    ActionChains(page.browser).move_to_element(page.all(".answer .cell")[3]).perform()
    page.until(lambda: "step 1 of" in page.find(".inspector").text)
    ActionChains(page.browser).move_to_element(page.find("h1")).perform()
    page.find(".answer").send_keys(Keys.ARROW_RIGHT)
    shown = page.find(".inspector").text
    assert shown.startswith("“")
    for part in ("step ", "confidence ", "runner-up “"):
        assert part in shown
    page.all(".answer .cell")[5].click()
    assert page.find(".inspector").text != shown


REFUSE_LOGPROBS = """
const original = window.fetch;
const refusal = JSON.stringify({error: {message: "too many", param: "top_logprobs"}});
window.fetch = (path, options) => options?.body?.includes('"logprobs":true')
    ? Promise.resolve(new Response(refusal, {status: 400})) : original(path, options);
"""


def test_an_answer_is_shown_if_the_server_refuses_log_probabilities(page: Playground) -> None:
    page.script(REFUSE_LOGPROBS)
    assert page.complete("What is 12 + 30?") == "12 + 30 = 42."
    page.find(".answer").send_keys(Keys.ARROW_RIGHT)
    assert "confidence not available" in page.find(".inspector").text


def test_a_table_and_an_object_are_formatted_on_request(page: Playground) -> None:
    page.complete("Write as a table: Emma, 34, Oslo; Bob, 25, Paris; Ann, 41, Rome")
    page.find("[data-view='formatted']").click()
    rows = [row.text for row in page.all(".formatted tr")]
    assert rows == ["Name Age City", "Emma 34 Oslo", "Bob 25 Paris", "Ann 41 Rome"]
    page.complete("Write as JSON: Emma works as a pilot in Oslo and is 34 years old.")
    assert json.loads(page.find(".formatted pre.json").text)["age"] == 34
    page.find("[data-view='tokens']").click()
    assert page.find(".answer").is_displayed()
    assert not page.find(".formatted").is_displayed()


RENDER = """
const [text, done] = arguments;
import(new URL('playground/render.js', document.baseURI)).then(({rendered}) => {
    const element = document.createElement('div');
    element.append(rendered(text));
    done(element.innerHTML);
});
"""


RENDERED = [  # a text, and the nodes that show it
    ("# A\nb **c** *d* `e`", "<h3>A</h3><p>b <strong>c</strong> <em>d</em> <code>e</code></p>"),
    ("- a\n- b\n  - c", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul>"),
    ("1. a\n2. b", "<ol><li>a</li><li>b</li></ol>"),
    ("```py\n<b>x</b>\n```", "<pre><code>&lt;b&gt;x&lt;/b&gt;</code></pre>"),
    ("> a\n> b", "<blockquote><p>a<br>b</p></blockquote>"),
    ("a | b", "<p>a | b</p>"),
    (
        "|a|b|\n|-|-|\n|<i>|2|",
        "<table><thead><tr><th>a</th><th>b</th></tr></thead>"
        "<tbody><tr><td>&lt;i&gt;</td><td>2</td></tr></tbody></table>",
    ),
    ("<img src=x onerror=alert(1)>", "<p>&lt;img src=x onerror=alert(1)&gt;</p>"),
    ("[a](javascript:alert(1)) ![b](http://c)", "<p>[a](javascript:alert(1)) ![b](http://c)</p>"),
    ("**<script>**", "<p><strong>&lt;script&gt;</strong></p>"),
    (
        '{"a": "<b>"}',
        '<pre class="json">{\n  <span class="json-key">"a"</span>: '
        '<span class="json-string">"&lt;b&gt;"</span>\n}</pre>',
    ),
]


def test_markdown_becomes_nodes_and_never_markup(page: Playground) -> None:
    for text, markup in RENDERED:
        assert page.browser.execute_async_script(RENDER, text) == markup


def test_the_first_examples_take_ten_steps_or_more(page: Playground) -> None:
    groups = page.all("#examples .group")
    assert [group.find_element("css selector", "h2").text for group in groups] == ["Watch it think", "Quick"]
    count = len(groups[0].find_elements("css selector", "button"))
    assert count >= 4
    for i in range(count):
        page.all("#examples .group:first-child button")[i].click()
        page.until_done()
        assert page.steps() >= 10, page.find("#prompt").get_attribute("value")


def test_the_result_is_above_the_examples_and_on_the_first_screen_of_a_phone(page: Playground) -> None:
    set_viewport(page.browser, 390, 844)
    page.complete(STORY)
    tops = page.script(
        "return ['.answer', '.steps', '#examples'].map("
        "name => document.querySelector(name).getBoundingClientRect().top)"
    )
    assert tops == sorted(tops)
    assert tops[0] < 500
    assert page.script("return document.querySelector('.answer').getBoundingClientRect().bottom") <= 844
    width = page.script("return [document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1]  # no horizontal scrolling


def test_a_run_can_be_stopped(page: Playground) -> None:
    page.find("summary").click()
    Select(page.find(".preset")).select_by_value("single")
    page.run("Count from 1 to 60.")
    page.until(lambda: page.find("#stop").is_enabled())
    page.find("body").send_keys(Keys.ESCAPE)
    page.until(lambda: page.status == "Stopped")
    assert page.find("#run").is_enabled()
