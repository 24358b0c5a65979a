"""The streams panel of the page: what it shows, how still it stands, and when it asks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Request, Route, expect

from midstream.sync import connect
from tests.browser.page_user import ask, open_panel, state
from tests.server.keyed_server import Keyed
from tests.server.server_process import Served

MARKUP = "<img src=x onerror='window.harmed=1'>\u202e"


def opened(page: Page) -> Locator:
    open_panel(page)
    page.locator("#streams > summary").click()
    return page.locator("#streams")


@contextmanager
def unread(server: Served, request_id: str, key: str | None = None) -> Iterator[None]:
    """A stream of somebody else's, which nobody reads."""
    with (
        connect(server.http, api_key=key) as client,
        client.start(prompt="Hi", request_id=request_id, ignore_eos=True, window=4),
    ):
        yield


def listings_asked_for(page: Page) -> list[Request]:
    """Filled from now on."""
    seen: list[Request] = []
    page.on("request", lambda request: seen.append(request) if "/v1/streams" in request.url else None)
    return seen


def listed_stream(name: str, **what: object) -> dict[str, object]:
    """A stream as the server lists it."""
    usual = {"tenant": "local", "model": "toy", "route": "http", "state": "running", "paused": None}
    numbers = {"age_s": 12.3, "prompt_tokens": 5, "tokens": 7, "tokens_per_s": 19.84, "credit": 52}
    return {"request_id": name, **usual, **numbers, "context_tokens": 1200, **what}


def listing(*streams: dict[str, object], **what: object) -> dict[str, object]:
    states = [stream["state"] for stream in streams]
    counts = {name: states.count(name) for name in ("queued", "running", "paused", "stalled")}
    return {"streams": streams, "total": len(streams), "states": counts, "server": None, **what}


def spaced(text: str) -> str:
    """As it is set: no line begins with a dot, and no number stands alone."""
    return text.replace(" ·", "\u00a0·").replace("_", "\u00a0")


def cells(row: Locator) -> list[str]:
    return row.locator("td").all_inner_texts()


def test_it_shows_what_lives_and_what_of_it_is_ones_own(page: Page, toy_server: Served) -> None:
    panel = opened(page)
    with unread(toy_server, "elsewhere"):
        answer = ask(page)
        rows = panel.locator("tbody tr")
        mine, other = rows.filter(has_text="Answer"), rows.filter(has_text="elsewhere")
        expect(mine).to_have_attribute("data-state", "running")
        expect(mine.locator("small")).to_have_text(re.compile(spaced(r"^running · \d+_s$")))
        expect(other).to_have_attribute("data-state", "stalled")
        assert cells(other)[:2] == ["\u2013", "0"]
        answer.locator(".pause").click()
        expect(mine).to_have_attribute("data-state", "paused")
        expect(panel.locator(".cache")).to_contain_text(re.compile(r"KV cache.*[1-9]\d* in use"))
        answer.locator(".stop").click()
        state(answer, "stopped")
        expect(mine).to_have_count(0)
    expect(other).to_have_count(0)


def test_rows_stay_where_and_what_they_are_while_numbers_move(page: Page) -> None:
    answers = [
        listing(listed_stream("b"), listed_stream("a", tokens_per_s=1.0)),
        listing(
            listed_stream("c"), listed_stream("b", state="stalled"), listed_stream("a", tokens_per_s=2.0)
        ),
        listing(listed_stream("c"), listed_stream("a", tokens_per_s=3.0)),
    ]
    page.route("**/v1/streams*", lambda route: route.fulfill(json=answers[0]))
    rows = opened(page).locator("tbody tr")
    expect(rows).to_have_count(2)
    old = rows.filter(has_text=re.compile("^a")).element_handle()
    for rate, names in (("2.0", "cba"), ("3.0", "ca")):
        answers.pop(0)
        expect(rows.last).to_contain_text(rate)
        assert [row.locator("bdi").inner_text() for row in rows.all()] == list(names)
        assert rows.last.evaluate("(row, old) => row === old", old)


def test_a_server_that_never_answers_is_said_not_to_and_asked_again(
    open_page: Callable[[], Page], toy_server: Served
) -> None:
    page = open_page()
    page.add_init_script(
        """AbortSignal.timeout = () => {
            const late = new AbortController();
            addEventListener("late", () => late.abort(), { once: true });
            return late.signal;
        }"""
    )
    page.goto(toy_server.http)
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    asked: list[Route] = []

    def serve(route: Route) -> None:
        asked.append(route)
        if len(asked) > 2:
            route.fulfill(json=listing(listed_stream("a")))

    page.route("**/v1/streams*", serve)
    with page.expect_request("**/v1/streams*"):
        panel = opened(page)
    with page.expect_request("**/v1/streams*"):
        page.evaluate('dispatchEvent(new Event("late"))')
    expect(panel.locator(".numbers")).to_have_text("The server does not answer.")
    page.evaluate('dispatchEvent(new Event("late"))')
    expect(panel.locator("tbody tr")).to_have_count(1)


def test_it_tells_how_many_there_are_and_why_they_stand_still(page: Page) -> None:
    server = {"kv_used_tokens": 3000, "kv_cached_tokens": 100, "kv_free_tokens": 16900, "tokens_per_s": 40.4}
    streams = [
        listed_stream("a", state="paused", paused="memory", tenant="eve"),
        listed_stream("b", age_s=7300, tokens_per_s=1234.5),
    ]
    answer = listing(*streams, total=612, server={"connections": 3, **server})
    page.route("**/v1/streams*", lambda route: route.fulfill(json=answer))
    panel = opened(page)
    expect(panel.locator(".numbers")).to_have_text(
        spaced("1_running · 1_paused · the_youngest_2_of_612 · 40_a_second")
    )
    expect(panel.locator(".cache small").last).to_have_text(spaced("3,000 in use · 100 kept · of 20K"))
    width = "(part) => part.getBoundingClientRect().width / part.parentElement.getBoundingClientRect().width"
    assert panel.locator(".bar .used").evaluate(width) == pytest.approx(0.15, abs=0.01)
    first, second = panel.locator("tbody tr").all()
    expect(first.locator("small")).to_have_text(spaced("paused: memory · 12_s · eve"))
    assert cells(first) == ["\u2013", "52", "1,200"]
    expect(second.locator("small")).to_have_text(spaced("running · 2_h · local"))
    assert cells(second) == ["1235", "52", "1,200"]


def test_names_of_streams_are_texts(page: Page, toy_server: Served) -> None:
    with unread(toy_server, MARKUP):
        panel = opened(page)
        expect(panel).to_contain_text("<img")
        expect(panel.locator("img")).to_have_count(0)
        assert "\u202e" not in panel.inner_text()
    assert page.evaluate("() => window.harmed") is None


def test_it_asks_only_while_somebody_looks(open_page: Callable[[], Page], toy_server: Served) -> None:
    page = open_page()
    page.clock.install()
    page.goto(toy_server.http)
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    asked = listings_asked_for(page)
    panel = opened(page)
    expect(panel.locator(".numbers")).not_to_be_empty()
    seen = len(asked)
    with page.expect_response("**/v1/streams*"):
        page.clock.run_for(1100)
    assert len(asked) > seen
    see(page, "hidden")
    nothing_asked(page, asked)
    see(page, "visible")
    expect(panel.locator(".numbers")).not_to_be_empty()
    panel.locator("> summary").click()
    nothing_asked(page, asked)
    with page.expect_response("**/v1/streams*"):
        panel.locator("> summary").click()
    page.set_viewport_size({"width": 390, "height": 844})  # where the whole panel folds
    expect(panel).to_be_hidden()
    nothing_asked(page, asked)


def see(page: Page, visibility: str) -> None:
    """A headless page always takes itself for visible."""
    page.evaluate(
        """(visibility) => {
            Object.defineProperty(document, "visibilityState", { value: visibility, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        visibility,
    )


def nothing_asked(page: Page, asked: list[Request]) -> None:
    """In a minute of the page's own time; what had been sent before that is not counted."""
    page.clock.run_for(2000)
    before = len(asked)
    page.clock.run_for(60_000)
    assert len(asked) == before


def test_what_the_server_does_not_tell_is_not_asked_for_again(
    open_page: Callable[[], Page], toy_server: Served
) -> None:
    def refuse(route: Route) -> None:
        route.fulfill(status=404, json={})

    page = open_page()
    page.clock.install()
    page.route("**/v1/streams*", refuse)
    page.goto(toy_server.http)
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    panel = opened(page)
    expect(panel.locator(".numbers")).to_have_text("The server does not tell (404).")
    nothing_asked(page, listings_asked_for(page))


def test_a_server_that_has_no_time_for_it_now_is_asked_again(page: Page) -> None:
    statuses = iter([429, 503])
    page.route("**/v1/streams*", lambda route: route.fulfill(status=next(statuses, 200), json=listing()))
    expect(opened(page).locator(".numbers")).to_have_text("No stream lives now.")


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    keyed = Keyed(tmp_path, "--toy-step-ms", "20")
    yield keyed
    keyed.served.end()


def test_with_keys_it_shows_what_the_key_may_see(open_page: Callable[[], Page], keyed: Keyed) -> None:
    with unread(keyed.served, "of the admin", keyed.admin):
        for key, sees in ((keyed.admin, True), (keyed.poor, False)):
            page = open_page()
            page.goto(keyed.served.http)
            page.locator("#key").fill(key)
            page.locator("#key").press("Enter")
            expect(page.locator("#connection")).to_have_attribute("data-state", "open")
            asked = listings_asked_for(page)
            panel = opened(page)
            expect(panel.locator(".numbers")).to_have_text(
                re.compile("1\u00a0stalled" if sees else "No stream lives now")
            )
            expect(panel.locator("tbody tr")).to_have_count(int(sees))
            expect(panel.locator(".cache")).to_be_visible(visible=sees)
            assert asked[0].header_value("authorization") == f"Bearer {key}"
