"""A user of the page: what a person does and sees there. No test waits for anything but the page itself."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from playwright.sync_api import Locator, Page, expect

from tests.server.server_process import PATIENCE_S, Metrics, Served, streams

LONG = "2000"  # tokens: no answer comes to its own end within a test


def ask(page: Page, text: str = "Say something long", answers: int = 1) -> Locator:
    """The answers to it, of which each has begun to write."""
    turns = page.locator(".turn").count()
    open_panel(page)
    page.locator("[name=max_tokens]").fill(LONG)
    page.locator("[name=min_tokens]").fill(LONG)
    page.locator("#times").select_option(str(answers))
    page.locator("#question").fill(text)
    page.locator("#question").press("Enter")
    written = page.locator(".turn").nth(turns).locator(".answer")
    for number in range(answers):
        written_so_far(written.nth(number), 8)
    return written


def open_panel(page: Page) -> None:
    if page.locator("#panel").get_attribute("open") is None:
        page.locator("#panel > summary").click()


def written_so_far(answer: Locator, words: int) -> None:
    """Wait until that many words stand."""
    expect(answer.locator(".word").nth(words - 1)).to_be_attached()


def words_of(answer: Locator) -> list[str]:
    """What the answer says, without marks."""
    return answer.locator(".word").all_inner_texts()


def state(answer: Locator, name: str) -> None:
    expect(answer.locator(".state")).to_have_text(re.compile(name))


def set_slider(page: Page, name: str, value: str) -> None:
    page.locator(f"#slider-{name}").fill(value)


def until(server: Served, condition: Callable[[Metrics], bool]) -> Metrics:
    """The first metrics of which the condition holds."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        metrics = metrics_of(server)
        if condition(metrics):
            return metrics
    raise AssertionError(f"it never came to that: {metrics}")


def busy(metrics: Metrics) -> float:
    """Streams that want to be decoded. A page that was killed leaves its own paused for a while."""
    return streams(metrics) - streams(metrics, "paused")


def metrics_of(server: Served) -> Metrics:
    _, text = server.get("/metrics")
    samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}
