"""The page's reconnecting: what was being written goes on, and the page says what it does meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.cutting_proxy_thread import CuttingProxyThread, cutting_proxy
from tests.browser.page_user import ask, busy, set_slider, state, until, words_of, written_so_far
from tests.server.server_process import Served


@pytest.fixture
def proxy(toy_server: Served) -> Iterator[CuttingProxyThread]:
    with cutting_proxy(toy_server.port) as proxy:
        yield proxy


def seeded(page: Page, url: str) -> Locator:
    """An answer that is the same each time."""
    page.goto(url)
    connected(page)
    page.locator("[name=seed]").evaluate("(field) => (field.value = '7')")
    return ask(page)


def connected(page: Page) -> None:
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")


def cut_for_a_while(page: Page, proxy: CuttingProxyThread) -> None:
    proxy.refuse(True)
    proxy.cut()
    expect(page.locator("#connection")).to_have_attribute("data-state", "reconnecting")


def in_worker(page: Page) -> None:
    page.locator("#connection summary").click()
    page.locator("#worker").check()
    connected(page)
    page.locator("#connection summary").click()


def test_what_is_written_goes_on_as_if_nothing_had_been(
    proxy: CuttingProxyThread, open_page: Callable[[], Page], toy_server: Served
) -> None:
    whole = seeded(open_page(), toy_server.http)
    written_so_far(whole, 70)
    page = open_page()
    answer = seeded(page, proxy.url)
    for words in (20, 35, 50):
        written_so_far(answer, words)
        proxy.cut()
    written_so_far(answer, 70)
    state(answer, "writing")
    expect(answer.locator(".problem")).to_be_hidden()
    assert words_of(answer)[:60] == words_of(whole)[:60]


@pytest.mark.parametrize("worker", [False, True])
def test_the_page_says_that_it_reconnects_and_steering_waits(
    proxy: CuttingProxyThread, open_page: Callable[[], Page], worker: bool
) -> None:
    page = open_page()
    page.goto(proxy.url)
    connected(page)
    if worker:
        in_worker(page)
    answer = ask(page)
    cut_for_a_while(page, proxy)
    expect(page.locator("#trouble")).to_contain_text("goes on where it was")
    expect(page.locator("#try-now")).to_be_hidden()
    expect(page.locator("#ask")).to_be_disabled()
    set_slider(page, "temperature", "1.3")
    standing = words_of(answer)
    proxy.refuse(False)
    connected(page)
    expect(page.locator("#trouble")).to_be_hidden()
    expect(answer.locator(".mark.adjust")).to_contain_text("temperature 1.3")
    written_so_far(answer, len(standing) + 5)
    assert words_of(answer)[: len(standing) - 1] == standing[:-1]


def test_what_is_stopped_without_a_connection_is_stopped_when_there_is_one(
    proxy: CuttingProxyThread, open_page: Callable[[], Page], toy_server: Served
) -> None:
    page = open_page()
    page.goto(proxy.url)
    connected(page)
    answer = ask(page)
    cut_for_a_while(page, proxy)
    answer.locator(".stop").click()
    proxy.refuse(False)
    expect(answer).to_have_attribute("data-state", re.compile("ended"))
    expect(answer.locator(".state")).to_have_text("stopped")
    until(toy_server, lambda now: not busy(now))


def test_a_connection_that_falls_silent_is_left_for_another(
    proxy: CuttingProxyThread, open_page: Callable[[], Page]
) -> None:
    page = open_page()
    page.clock.install()
    page.goto(proxy.url)
    connected(page)
    answer = ask(page)
    proxy.cut("silence")
    standing = words_of(answer)
    with page.expect_websocket():
        page.clock.run_for(31_000)  # of the page's own time
    connected(page)
    written_so_far(answer, len(standing) + 20)
    assert words_of(answer)[: len(standing) - 1] == standing[:-1]


# What may take seconds takes none, where the page is told so.
HURRIED = """
const { timeout } = AbortSignal;
AbortSignal.timeout = (ms) => timeout.call(AbortSignal, window.hurried ? 1 : ms);
"""


def test_a_worker_that_does_not_come_is_not_waited_for_without_end(
    open_page: Callable[[], Page], toy_server: Served
) -> None:
    """Its script comes by HTTP, whose connection may be as dead as the one that was lost."""
    page = open_page()
    page.add_init_script(HURRIED)
    page.goto(toy_server.http)
    connected(page)

    def hold(route: Route) -> None:
        """Nothing ever comes of it."""

    script = f"{toy_server.http}/worker.js"
    page.route(script, hold)
    page.locator("#connection summary").click()
    page.evaluate("() => (window.hurried = true)")
    page.locator("#worker").check()
    expect(page.locator("#connection")).to_have_attribute("data-state", "waiting")
    page.unroute(script)
    page.evaluate("() => (window.hurried = false)")
    connected(page)
