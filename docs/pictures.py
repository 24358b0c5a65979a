"""The README's pictures, made from the real thing: the workbench in light and dark, and a steered call.

`make pictures` writes them to docs/images. What a model says is its own; what is done to it stands here.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from engine.model.default_model import DEFAULT_MODEL
from tests.browser.conftest import FLAGS, find_browser
from tests.server.server_process import Served

IMAGES = Path(__file__).parent / "images"
WIDE, FILM = (1280, 800), (1060, 600)
QUESTION = "What is 12 times the sum of 3 and 4?"
MEANT = '{"expression": "12 * (3 + 4)"}'
SEED, TOKENS = 7, 70
ENDED = re.compile("finished|reached its limit")
FRAME_MS, REST_MS = 120, 1500
BEHIND = 12  # frames in which the model goes on
TIMEOUT_MS = 120_000

Scheme = Literal["light", "dark"]


def workbench(browser: Browser, url: str, scheme: Scheme, size: tuple[int, int]) -> Page:
    width, height = size
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(f"{url}/#workbench")
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    return page


def ask(page: Page, question: str) -> Locator:
    """The first call that comes of it, as it is being written."""
    page.locator("#tool-choice").select_option("required")
    page.locator("[name=seed]").fill(str(SEED))
    page.locator("[name=max_tokens]").fill(str(TOKENS))
    page.locator("#slider-temperature").evaluate("(slider) => { slider.value = 0; }")
    page.locator("#question").fill(question)
    page.locator("#ask").click()
    call = page.locator(".call").first
    expect(call.locator("pre").first).not_to_be_empty()
    return call


def amend(call: Locator, arguments: str, shoot: Film | None = None) -> None:
    """Stop it in the midst of its arguments, and write them anew."""
    shoot = shoot or Film(call.page)
    call.get_by_role("button", name="Stop here").click()
    expect(call.locator(".progress")).to_have_text("stopped here")
    shoot.rest()
    call.get_by_role("button", name="Change").click()
    shoot.rest()
    call.get_by_role("textbox").fill(arguments)
    shoot.rest()
    call.get_by_role("button", name="Use these").click()
    while call.locator(".result").is_hidden():
        shoot.frame()
    shoot.rest()


def picture(page: Page) -> bytes:
    """A call that was changed, and has returned."""
    call = ask(page, QUESTION)
    amend(call, MEANT)
    expect(page.locator(".answer .state").first).to_have_text(ENDED)
    call.evaluate("(card) => card.scrollIntoView({ block: 'center' })")
    return page.screenshot()


class Film:
    """What the page looks like, frame by frame."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._frames: list[tuple[Image.Image, int]] = []

    def frame(self, lasts_ms: int = FRAME_MS) -> None:
        shot = Image.open(io.BytesIO(self._page.screenshot())).convert("RGB")
        self._frames.append((shot, lasts_ms))

    def rest(self) -> None:
        self.frame(REST_MS)

    def save(self, path: Path) -> None:
        (first, *others), durations = zip(*self._frames, strict=True)
        first.save(
            path, save_all=True, append_images=others, duration=durations, loop=0, quality=60, method=4
        )


def film(page: Page) -> Film:
    made = Film(page)
    call = ask(page, QUESTION)
    made.frame()
    amend(call, MEANT, made)
    for _ in range(BEHIND):
        made.frame()
    made.rest()
    return made


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    server = Served("--weights", "f32", "--threads", "1", model=DEFAULT_MODEL)  # as slow as people read
    try:
        with sync_playwright() as playwright:
            expect.set_options(timeout=TIMEOUT_MS)
            browser = playwright.chromium.launch(executable_path=find_browser(playwright), args=FLAGS)
            schemes: tuple[Scheme, ...] = ("light", "dark")
            for scheme in schemes:
                shot = picture(workbench(browser, server.http, scheme, WIDE))
                (IMAGES / f"workbench-{scheme}.png").write_bytes(shot)
            film(workbench(browser, server.http, "light", FILM)).save(IMAGES / "steered-call.webp")
            browser.close()
    finally:
        server.end()


if __name__ == "__main__":
    main()
