import html
import os
import re
from pathlib import Path

from checks import KEY, MODEL, SERVER, SUM, SUM_ANSWER, check, main, same
from streamlit.testing.v1 import AppTest

os.environ |= {"UNMASK_URL": SERVER, "UNMASK_API_KEY": KEY}
SCRIPT = Path(__file__).parents[3] / "examples" / "streamlit_chat.py"


def opened() -> AppTest:
    app = AppTest.from_file(str(SCRIPT), default_timeout=60).run()
    same([error.value for error in app.error], [])
    assert not app.exception, app.exception
    return app


def asked(app: AppTest, question: str) -> AppTest:
    app.chat_input[0].set_value(question).run()
    assert not app.exception, app.exception
    return app


def texts(app: AppTest) -> list[str]:
    """Returns the texts of the answers in the stored turns."""
    return [answer.text for _, answers in app.session_state["turns"] for answer in answers]


def pages(app: AppTest) -> list[str]:
    """Returns the displayed text of each answer."""
    return [html.unescape(re.sub("<[^>]*>", "", each.proto.body)) for each in app.get("html")]


@check("basic")
def answers_and_goes_on() -> None:
    app = asked(opened(), SUM)
    asked(app, "And times two?")
    same(texts(app)[0], SUM_ANSWER)
    same(len(texts(app)), 2)
    assert any("tokens per forward" in caption.value for caption in app.caption), app.caption
    assert f"{SERVER}/v1/chat/completions" in app.code[0].value


@check("basic")
def pickers_are_the_servers() -> None:
    app = opened()
    same(app.selectbox(key="one-model").options, [MODEL])
    assert {"quality", "balanced", "speed"} <= set(app.selectbox(key="one-mode").options)
    assert "threshold" in app.selectbox(key="one-algorithm").options
    app.selectbox(key="one-mode").set_value("speed").run()
    assert '"mode": "speed"' in asked(app, SUM).code[0].value


@check("streaming")
def steps_are_seen() -> None:
    app = asked(opened(), SUM)
    slider = app.slider(key="0-0-steps")
    assert slider.max >= 1, slider
    assert SUM_ANSWER in pages(app), pages(app)
    slider.set_value(0).run()
    assert SUM_ANSWER not in pages(app), pages(app)


@check("more")
def side_by_side() -> None:
    app = opened()
    app.checkbox[0].check().run()
    same(texts(asked(app, SUM)), [SUM_ANSWER, SUM_ANSWER])


@check("more")
def holes_are_filled() -> None:
    app = opened()
    app.text_area[0].set_value("2, 4, <mask:2> 8, 10").run()
    next(button for button in app.button if button.label == "fill").click().run()
    assert not app.exception, app.exception
    assert app.text[-1].value.startswith("2, 4, ") and app.text[-1].value.endswith(" 8, 10"), app.text


@check("more")
def refusals_are_shown() -> None:
    app = opened()
    app.text_area[0].set_value("no hole").run()
    next(button for button in app.button if button.label == "fill").click().run()
    assert "hole" in app.error[0].value, app.error


main()
