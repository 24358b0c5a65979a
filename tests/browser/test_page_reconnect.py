"""The page on a wire that is cut: what was being written goes on, and it says what it does meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.cutting_proxy_thread import CutWire, cut_wire
from tests.browser.page_user import ask, busy, state, turn_dial, until, words_of, written_so_far
from tests.server.server_process import Served


@pytest.fixture
def wire(toy: Served) -> Iterator[CutWire]:
    with cut_wire(toy.port) as wire:
        yield wire


def seeded(page: Page, url: str) -> Locator:
    """An answer that is the same each time."""
    page.goto(url)
    connected(page)
    page.locator("[name=seed]").evaluate("(field) => (field.value = '7')")
    return ask(page)


def connected(page: Page) -> None:
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")


def cut_for_a_while(page: Page, wire: CutWire) -> None:
    wire.refuse(True)
    wire.cut()
    expect(page.locator("#connection")).to_have_attribute("data-state", "reconnecting")


def in_worker(page: Page) -> None:
    page.locator("#connection summary").click()
    page.locator("#worker").check()
    connected(page)
    page.locator("#connection summary").click()


def test_what_is_written_goes_on_as_if_nothing_had_been(
    wire: CutWire, open_page: Callable[[], Page], toy: Served
) -> None:
    whole = seeded(open_page(), toy.http)
    written_so_far(whole, 70)
    page = open_page()
    answer = seeded(page, wire.url)
    for words in (20, 35, 50):
        written_so_far(answer, words)
        wire.cut()
    written_so_far(answer, 70)
    state(answer, "writing")
    expect(answer.locator(".problem")).to_be_hidden()
    assert words_of(answer)[:60] == words_of(whole)[:60]


@pytest.mark.parametrize("worker", [False, True])
def test_the_page_says_that_it_reconnects_and_steering_waits(
    wire: CutWire, open_page: Callable[[], Page], worker: bool
) -> None:
    page = open_page()
    page.goto(wire.url)
    connected(page)
    if worker:
        in_worker(page)
    answer = ask(page)
    cut_for_a_while(page, wire)
    expect(page.locator("#trouble")).to_contain_text("goes on where it was")
    expect(page.locator("#try-now")).to_be_hidden()
    expect(page.locator("#ask")).to_be_disabled()
    turn_dial(page, "temperature", "1.3")
    standing = words_of(answer)
    wire.refuse(False)
    connected(page)
    expect(page.locator("#trouble")).to_be_hidden()
    expect(answer.locator(".mark.adjust")).to_contain_text("temperature 1.3")
    written_so_far(answer, len(standing) + 5)
    assert words_of(answer)[: len(standing) - 1] == standing[:-1]


def test_what_is_stopped_without_a_connection_is_stopped_when_there_is_one(
    wire: CutWire, open_page: Callable[[], Page], toy: Served
) -> None:
    page = open_page()
    page.goto(wire.url)
    connected(page)
    answer = ask(page)
    cut_for_a_while(page, wire)
    answer.locator(".stop").click()
    wire.refuse(False)
    expect(answer).to_have_attribute("data-state", re.compile("ended"))
    expect(answer.locator(".state")).to_have_text("stopped")
    until(toy, lambda now: not busy(now))


def test_a_wire_that_falls_silent_is_left_for_another(wire: CutWire, open_page: Callable[[], Page]) -> None:
    page = open_page()
    page.clock.install()
    page.goto(wire.url)
    connected(page)
    answer = ask(page)
    wire.cut("silence")
    standing = words_of(answer)
    with page.expect_websocket():
        page.clock.run_for(31_000)  # of the page's own time
    connected(page)
    written_so_far(answer, len(standing) + 20)
    assert words_of(answer)[: len(standing) - 1] == standing[:-1]
