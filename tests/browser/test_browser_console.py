"""The browser's console, in which the page leaves nothing."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.browser.page_user import ask, open_panel, state
from tests.server.server_process import Served


def test_a_whole_visit_leaves_no_word_in_the_console(
    open_page: Callable[[], Page], toy_server: Served
) -> None:
    page = open_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(toy_server.http)
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    open_panel(page)
    page.locator("#streams > summary").click()
    answer = ask(page)
    expect(page.locator("#streams tbody tr")).to_have_count(1)
    answer.locator(".stop").click()
    state(answer, "stopped")
    page.reload()
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    assert said == []
