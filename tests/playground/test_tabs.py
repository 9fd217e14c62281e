"""Chat, structured output, tools, gaps, and the comparison of two settings."""

import json

import pytest
from selenium.webdriver import Keys
from selenium.webdriver.support.ui import Select

from tests.playground.driver import Playground

pytestmark = pytest.mark.browser


def set_text(page: Playground, selector: str, text: str) -> None:
    field = page.find(selector)
    field.clear()
    field.send_keys(text)


def test_a_conversation_refers_to_earlier_messages(page: Playground) -> None:
    page.open_tab("chat")
    assert page.complete("What is 12 + 30?") == "12 + 30 = 42."
    assert page.complete("And times two?") == "42 x 2 = 84."
    shown = [line.text for line in page.all(".bubble .content")]
    assert shown == ["What is 12 + 30?", "12 + 30 = 42.", "And times two?"]
    page.find("#forget").click()
    assert not page.all(".bubble")
    assert page.answer() == ""
    assert not page.console()


def test_regenerate_answers_the_last_message_again(page: Playground) -> None:
    page.open_tab("chat")
    assert not page.find("#regenerate").is_enabled()
    page.complete("What is 12 + 30?")
    seed = page.figure("seed")
    page.find("#regenerate").click()
    page.until(lambda: page.status == "Done" and page.figure("seed") != seed)
    assert page.answer() == "12 + 30 = 42."
    assert len(page.all(".bubble")) == 1


def test_the_system_prompt_is_part_of_the_request(page: Playground) -> None:
    page.open_tab("chat")
    page.find("#code summary").click()
    assert '"role":"system"' not in page.find("#snippet").text
    page.find("#system").send_keys("You are a helpful assistant.")
    assert '{"role":"system","content":"You are a helpful assistant."}' in page.find("#snippet").text
    assert page.complete("What is 12 + 30?") == "12 + 30 = 42."


def test_answers_of_a_chat_have_a_copy_button(page: Playground) -> None:
    page.open_tab("chat")
    page.complete("What is 12 + 30?")
    page.complete("And times two?")
    page.browser.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    page.find(".bubble.assistant button").click()
    read = "navigator.clipboard.readText().then(arguments[arguments.length - 1])"
    page.until(lambda: page.browser.execute_async_script(read) == "12 + 30 = 42.")
    page.find(".copy-answer").click()
    page.until(lambda: page.browser.execute_async_script(read) == "42 x 2 = 84.")


def test_structured_output_is_checked_against_its_schema(page: Playground) -> None:
    page.open_tab("structured")
    assert "Valid schema" in page.find("#format-state").text
    value = json.loads(page.complete())
    assert value == {"name": "Emma", "age": 34, "city": "Oslo"}
    assert "matches the schema" in page.find(".verdict").text
    page.set_step(1)
    assert "left" in page.find(".verdict").text


def test_a_schema_is_checked_while_it_is_typed(page: Playground) -> None:
    page.open_tab("structured")
    set_text(page, "#format-text", '{"type": "text"}')
    assert '"text" is not a type' in page.find("#format-state").text
    set_text(page, "#format-text", '{"anyOf": {}}')
    assert '"anyOf" must be a list' in page.find("#format-state").text
    page.find("#format-text").send_keys(Keys.BACKSPACE)
    assert "Not valid JSON" in page.find("#format-state").text
    page.run()
    assert page.is_error()
    assert "Not valid JSON" in page.status


def test_choices_and_expressions_restrict_the_answer(page: Playground) -> None:
    page.open_tab("structured")
    Select(page.find("#format")).select_by_value("choice")
    assert page.complete("What is 12 + 30?") in ("yes", "no")
    assert "One of the choices" in page.find(".verdict").text
    Select(page.find("#format")).select_by_value("regex")
    set_text(page, "#format-text", "[0-9]{2}")
    assert page.complete("What is 12 + 30?").isdigit()
    assert "Matches the expression" in page.find(".verdict").text
    set_text(page, "#format-text", "[0-9")
    assert "wrong" in (page.find("#format-state").get_attribute("class") or "")


VIOLATIONS = """
const [value, schema, done] = arguments;
import(new URL('playground/schema.js', document.baseURI)).then(({violations}) => done(violations(value, schema)));
"""


CHECKED: list[tuple[object, object, int]] = [  # a value, a schema, and the number of violations
    ({"a": 1}, {"type": "object", "required": ["a"]}, 0),
    ({}, {"type": "object", "required": ["a"]}, 1),
    ({"b": 1}, {"properties": {"a": {}}, "additionalProperties": False}, 1),
    ({"toString": 1}, {"additionalProperties": False}, 1),
    ([1, "x"], {"type": "array", "items": {"type": "integer"}}, 1),
    (1.5, {"type": "integer"}, 1),
    ("b", {"enum": ["a", "b"]}, 0),
    ("c", {"anyOf": [{"const": "a"}, {"const": "b"}]}, 1),
    (7, {"minimum": 8, "maximum": 9}, 1),
    ("abc", {"pattern": "^b", "maxLength": 2}, 2),
]


def test_violations_of_a_schema_are_found(page: Playground) -> None:
    for value, schema, count in CHECKED:
        found = page.browser.execute_async_script(VIOLATIONS, value, schema)
        assert len(found) == count, (value, schema, found)


def test_a_tool_is_called_and_its_result_used(page: Playground) -> None:
    page.open_tab("tools")
    assert "calculator" in page.find("#tools-state").text
    page.complete()
    assert page.find(".call h3").text == "Call of calculator"
    assert json.loads(page.find(".call pre").text) == {"expression": "36*24"}
    assert page.figure("finish") == "tool_calls"
    page.find(".calls form button").click()
    page.until(lambda: page.answer() == "The answer is 864.")
    page.until_done()
    assert "calculator returned 864" in page.find(".caption").text
    assert not page.console()


def test_tools_are_checked_while_they_are_typed(page: Playground) -> None:
    page.open_tab("tools")
    set_text(page, "#tools-text", '[{"type": "function", "function": {"name": "a b"}}]')
    assert "function.name" in page.find("#tools-state").text
    page.run("What is 36 x 24?")
    assert page.is_error()


def test_gaps_are_filled_and_marked(page: Playground) -> None:
    page.open_tab("infill")
    assert "4 gaps, 29 tokens" in page.find("#gaps-state").text
    answer = page.complete()
    assert answer.startswith("Clara lived near the castle.\nOne evening a fox came with a ")
    assert answer.endswith("From then on Clara and the fox were friends.")
    assert sum("filled" in kind.split() for kind in page.cells()) == 29
    assert page.find(".filled-key").is_displayed()
    assert page.figure("tokens") == "29"
    page.find(".steps").send_keys(Keys.HOME)
    assert page.answer().count("_") == 29
    assert not page.console()


def test_a_gap_is_inserted_at_the_cursor(page: Playground) -> None:
    page.open_tab("infill")
    set_text(page, "#gaps", "g-i-")
    assert "Insert at least one gap" in page.find("#gaps-state").text
    set_text(page, "#gap-length", "5")
    page.find("#insert-gap").click()
    page.find("#gaps").send_keys("-f-e.")
    assert page.find("#gaps").get_attribute("value") == "g-i-<mask:5>-f-e."
    assert page.complete("Spell giraffe.") == "g-i-r-a-f-f-e."


def test_gaps_without_a_question_begin_with_text(page: Playground) -> None:
    page.open_tab("infill")
    set_text(page, "#gaps", "2, 4, <mask:2>8")
    answer = page.complete("")
    assert answer.startswith("2, 4, ")
    assert answer.endswith("8")


def test_marked_tokens_are_filled_again_and_the_trace_is_preserved(page: Playground) -> None:
    before = page.complete("What is 12 + 30?")
    steps = page.steps()
    assert page.find(".refill").is_displayed()
    assert not page.find(".fill").is_enabled()
    index = next(i for i, cell in enumerate(page.all(".answer .cell")) if cell.text == "4")
    page.all(".answer .cell")[index].click()
    assert page.find(".marked-tokens").text.startswith("1 marked token")
    page.find(".answer").send_keys(Keys.SHIFT + Keys.ARROW_RIGHT)
    assert page.find(".marked-tokens").text.startswith("2 marked tokens")
    page.find(".fill").click()
    page.until(lambda: page.status == "Done" and page.figure("finish") == "filled")
    assert page.answer() == before
    assert [i for i, kind in enumerate(page.cells()) if "filled" in kind.split()] == [index - 1, index, index + 1]
    page.set_step(steps)
    assert page.answer() == before  # the first run
    assert not any("filled" in kind.split() for kind in page.cells())
    page.set_step(steps + 1)
    assert page.answer() == "12 + 30___."  # tokenized alone, the text before "4" has other tokens
    assert not page.console()


def test_two_presets_differ_visibly(page: Playground) -> None:
    page.find("#prompt").send_keys("Spell lamp.")
    page.find("#compare").click()
    assert page.find("#prompt").get_attribute("value") == "Spell lamp."
    panes = page.all(".pane")
    assert len(panes) == 2
    summaries = [pane.find_element("css selector", "summary").text for pane in panes]
    assert summaries == ["Settings: One token per step", "Settings: Server default"]
    assert [caption.text for caption in page.all(".caption")] == ["One token per step", "Server default"]
    page.complete("Write the times table of 7 up to 9.")
    assert page.answer(0) == page.answer(1) == "\n".join(f"7 x {i} = {7 * i}" for i in range(1, 10))
    assert float(page.figure("tokens per step", 0)) <= 1
    assert float(page.figure("tokens per step", 1)) > 5
    page.find("#compare").click()
    assert len(page.all(".pane")) == 1
    assert not page.console()


def test_settings_have_names_ranges_and_the_defaults_of_the_server(page: Playground) -> None:
    page.find("summary").click()
    assert page.find("[data-name='algorithm'] option").text == "threshold (default)"
    assert page.find("[data-name='accept_threshold']").get_attribute("placeholder") == "0.95 (default)"
    assert page.find("[data-name='temperature']").get_attribute("placeholder") == "0 (default)"
    label = page.find("[data-name='accept_threshold']").find_element("xpath", "..").text
    assert label.startswith("Confidence threshold")
    assert "0 to 1" in label
    slider = page.find(".field input[type='range']")
    assert slider.get_attribute("value") == "0.95"
    slider.send_keys(Keys.ARROW_RIGHT)
    assert page.find("[data-name='accept_threshold']").get_attribute("value") == "0.96"
    assert page.find("summary").text == "Settings: confidence threshold 0.96"
    page.find(".reset").click()
    assert page.find("[data-name='accept_threshold']").get_attribute("value") == ""
    Select(page.find("[data-name='algorithm']")).select_by_visible_text("sequential")
    assert not page.find("[data-name='accept_threshold']").is_displayed()
    assert not page.find("[data-name='mode']").is_displayed()


def test_an_error_of_the_server_is_shown(page: Playground) -> None:
    page.find("summary").click()
    page.find("[data-name='max_tokens']").send_keys("-5")
    page.run("What is 12 + 30?")
    page.until(page.is_error)
    assert "max_tokens" in page.status
    assert "-5" in page.status
    assert page.find("#run").is_enabled()


def test_each_tab_preserves_its_answer(page: Playground) -> None:
    page.complete("What is 12 + 30?")
    page.open_tab("chat")
    page.complete("Spell giraffe.")
    page.open_tab("prompt")
    assert page.answer() == "12 + 30 = 42."
    assert page.find("#prompt").get_attribute("value") == "What is 12 + 30?"
    page.find("#tab-prompt").send_keys(Keys.ARROW_RIGHT)
    assert page.find("[aria-selected='true']").text == "Chat"
    assert page.answer() == "g-i-r-a-f-f-e."
