"""Takes screenshots of the playground, and the animation of the README, from real runs of the demo model."""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path

from PIL import Image
from selenium.common.exceptions import WebDriverException
from selenium.webdriver import ActionChains, Chrome, Keys

from runtime.bench.started import launched
from tools.playground.browser import PlaygroundDriver, chromium, set_media, set_viewport

SECONDS = 60.0
STORY = "Tell a story about Clara and a fox."
DESKTOP = (1200, 900)
PHONE = (390, 844)
FRAME_MILLISECONDS = 220
PAUSE_MILLISECONDS = 3000  # on the finished answer


class Photographer(PlaygroundDriver):
    """Drives the page and saves what it shows."""

    def __init__(self, browser: Chrome, url: str, folder: Path) -> None:
        super().__init__(browser, url)
        self.folder = folder

    def open(self, size: tuple[int, int] = DESKTOP, theme: str = "light", scale: float = 1.0) -> None:
        """Opens the page with the finished recording."""
        set_viewport(self.browser, *size, scale=scale)
        set_media(self.browser, prefers_color_scheme=theme, prefers_reduced_motion="reduce")
        self.browser.get(self.url)
        self.until(lambda: self.find("#run").is_enabled() and self.steps() > 0)

    def save(self, name: str, *, full: bool = False) -> None:
        """Saves the window, or with `full` the complete page."""
        if full:
            height = int(self.script("return document.documentElement.scrollHeight"))
            width = int(self.script("return innerWidth"))
            set_viewport(self.browser, width, height)
        self.script("document.activeElement.blur(); scrollTo(0, 0)")
        image = Image.open(io.BytesIO(self.browser.get_screenshot_as_png())).convert("RGB")
        small = image.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        small.save(self.folder / f"{name}.png", optimize=True)


def first_sight(page: Photographer) -> None:
    page.open()
    page.save("page-first")


def in_progress(page: Photographer) -> None:
    page.open()
    page.run_until_done(STORY)
    page.set_step(page.steps() * 3 // 5)
    page.save("page")


def finished(page: Photographer) -> None:
    page.open()
    page.run_until_done(STORY)
    cells = page.all(".answer .cell")
    verb = [cell.text.strip() for cell in cells].index("near") - 1  # decides the plot, so the model is not sure of it
    ActionChains(page.browser).move_to_element(cells[verb]).perform()
    page.save("page-finished")


def chat(page: Photographer) -> None:
    page.open()
    page.find("[data-tab='chat']").click()
    for prompt in ("What is 12 + 30?", "And times two?"):
        page.run_until_done(prompt)
    page.save("page-chat", full=True)


def structured(page: Photographer) -> None:
    page.open()
    page.find("[data-tab='structured']").click()
    page.run_until_done()
    page.find("[data-view='formatted']").click()
    page.save("page-json", full=True)


def tools(page: Photographer) -> None:
    page.open()
    page.find("[data-tab='tools']").click()
    page.run_until_done()
    page.save("page-tools", full=True)


def compare(page: Photographer) -> None:
    page.open()
    page.find("#compare").click()
    page.run_until_done("Write the times table of 7 up to 9.")
    page.save("page-compare", full=True)


def infill(page: Photographer) -> None:
    page.open()
    page.find("[data-tab='infill']").click()
    page.run_until_done()
    page.save("page-infill", full=True)


def settings(page: Photographer) -> None:
    page.open()
    for summary in page.all(".settings summary"):
        summary.click()
    page.save("page-settings", full=True)


def error(page: Photographer) -> None:
    page.open()
    page.find(".settings summary").click()
    page.find("[data-name='max_tokens']").send_keys("-5")
    field = page.find("#prompt")
    field.send_keys(STORY, Keys.CONTROL + Keys.ENTER)
    page.until(lambda: "wrong" in (page.find("#status").get_attribute("class") or ""))
    page.save("page-error")


def phone(page: Photographer) -> None:
    page.open(PHONE, scale=2)
    page.run_until_done(STORY)
    page.set_step(page.steps() * 3 // 5)
    page.save("page-phone")


def dark(page: Photographer) -> None:
    page.open(theme="dark")
    page.run_until_done(STORY)
    page.set_step(page.steps() * 3 // 5)
    page.save("page-dark")


def table(page: Photographer) -> None:
    page.open(theme="dark")
    page.run_until_done("Write as a table: Emma, 34, Oslo; Bob, 25, Paris; Ann, 41, Rome")
    page.find("[data-view='formatted']").click()
    page.save("page-table")


def api_docs(page: Photographer) -> None:
    page.open()
    page.browser.get(f"{page.url}/docs")
    page.until(lambda: page.all(".opblock"))
    page.save("page-api-docs")


def key(page: Photographer) -> None:
    with launched(None, "", UNMASK_API_KEY="a-key-of-more-than-16-characters") as (_, port):
        set_viewport(page.browser, *DESKTOP)
        set_media(page.browser, prefers_color_scheme="light", prefers_reduced_motion="reduce")
        _open_when_it_listens(page, f"http://127.0.0.1:{port}")
        page.until(lambda: page.find("#key-form").is_displayed())
        page.save("page-key")


def _open_when_it_listens(page: Photographer, url: str) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            page.browser.get(url)
            return
        except WebDriverException:  # connection refused
            time.sleep(0.2)
    raise RuntimeError(f"{url} cannot be opened after {SECONDS:.0f} s")


def animation(page: Photographer) -> None:
    """Saves one frame per step as an animated WebP, without the controls below the answer."""
    page.open((860, 900))
    page.run_until_done(STORY)
    hidden = ".inspector, .refill, .settings, .head button, .switch, .speed-name"
    style = f"document.querySelectorAll('{hidden}').forEach((element) => element.remove())"
    page.script(style)
    page.script("document.querySelector('.caption').textContent = arguments[0]", STORY)
    frames = []
    for step in range(page.steps() + 1):
        page.set_step(step)
        time.sleep(0.2)  # colors change within 0.15 s
        frames.append(Image.open(io.BytesIO(page.find(".pane").screenshot_as_png)).convert("RGB"))
    width, height = frames[0].width, max(frame.height for frame in frames)
    padded = []
    for frame in frames:
        canvas = Image.new("RGB", (width, height), frame.getpixel((width // 2, 3)))
        canvas.paste(frame, (0, 0))
        padded.append(canvas)
    durations = [FRAME_MILLISECONDS] * (len(padded) - 1) + [PAUSE_MILLISECONDS]
    target = page.folder / "denoising.webp"
    padded[0].save(target, save_all=True, append_images=padded[1:], duration=durations, loop=0, lossless=True, method=6)


SHOTS: dict[str, Callable[[Photographer], None]] = {
    function.__name__: function
    for function in (
        first_sight, in_progress, finished, chat, structured, tools, compare, infill, settings, error, key, phone, dark,
        table, api_docs, animation,
    )
}  # fmt: skip


def make_all(url: str, folder: Path, names: Collection[str] = ()) -> None:
    """Makes the images of the named shots, or of all."""
    with (
        tempfile.TemporaryDirectory(prefix="unmask-screenshots-") as profile,
        chromium(Path(profile), DESKTOP) as browser,
    ):
        page = Photographer(browser, url, folder)
        for name in names or SHOTS:
            SHOTS[name](page)
            print(name, flush=True)
