"""The web page in a real browser, against the real server with the toy model: it steers answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, WebSocketRoute, expect

from tests.browser.page_user import (
    ask,
    busy,
    metrics_of,
    open_panel,
    set_slider,
    state,
    until,
    words_of,
    written_so_far,
)
from tests.server.server_process import Served, decoded, streams


def idle(server: Served) -> float:
    return decoded(until(server, lambda now: not busy(now)))


def frames_of(page: Page, url: str) -> tuple[list[str], list[str]]:
    """What goes over the page's socket, either way, from its next loading on."""
    sent: list[str] = []
    received: list[str] = []

    def watch(socket: object) -> None:
        socket.on("framesent", lambda data: sent.append(str(data)))  # type: ignore[attr-defined]
        socket.on("framereceived", lambda data: received.append(str(data)))  # type: ignore[attr-defined]

    page.on("websocket", watch)
    page.goto(url)
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    return sent, received


def test_stop_stops_decoding(page: Page, toy_server: Served) -> None:
    answer = ask(page)
    answer.locator(".stop").click()
    state(answer, "stopped")
    total = idle(toy_server)
    expect(answer.locator(".numbers")).to_contain_text("tokens")
    assert decoded(metrics_of(toy_server)) == total


def test_what_was_held_back_stands_behind_what_is_stopped(
    open_page: Callable[[], Page], toy_server: Served
) -> None:
    """As what may begin a stop string: it comes with the end, and with no token."""

    def serve(socket: WebSocketRoute) -> None:
        def send(seq: int, kind: str, **fields: object) -> None:
            socket.send(
                json.dumps({"type": kind, "request_id": started[0]["request_id"], "seq": seq, **fields})
            )

        def receive(data: str | bytes) -> None:
            frame = json.loads(data)
            if frame["type"] == "start":
                started.append(frame)
                send(0, "started", model="m", prompt_tokens=1, params={}, ref=frame["ref"])
                send(1, "token", index=0, count=1, delta="Once", tokens=[1])
            elif frame["type"] == "cancel":
                send(2, "token", index=1, count=0, delta=" upon")
                counts = {"usage": {"discarded_tokens": 0}, "timing": {"ttft_ms": 1, "tokens_per_s": 1}}
                send(3, "final", index=1, finish_reason="cancelled", ref=frame["ref"], **counts)

        started: list[dict[str, object]] = []
        socket.on_message(receive)
        ready = {"type": "ready", "protocol": 1, "session_id": "s", "models": ["m"], "limits": {}}
        socket.send(json.dumps(ready))

    page = open_page()
    page.route_web_socket("**/v1/realtime", serve)
    page.goto(toy_server.http)
    page.locator("#question").fill("Hi")
    page.locator("#question").press("Enter")
    answer = page.locator(".answer")
    written_so_far(answer, 1)
    answer.locator(".stop").click()
    state(answer, "stopped")
    assert words_of(answer) == ["Once", "upon"]


def test_escape_stops_everything(page: Page, toy_server: Served) -> None:
    answers = ask(page, answers=2)
    page.keyboard.press("Escape")
    for number in range(2):
        state(answers.nth(number), "stopped")
    idle(toy_server)


def test_pause_holds_the_text_still_and_resume_goes_on(page: Page, toy_server: Served) -> None:
    answer = ask(page)
    page.keyboard.press("Alt+p")
    state(answer, "paused")
    held = words_of(answer)
    total = decoded(until(toy_server, lambda now: streams(now, "paused") > 0))
    other = ask(page, "Something else, meanwhile")  # the toy's step goes on, but not for the first
    other.locator(".stop").click()
    assert words_of(answer) == held
    assert decoded(metrics_of(toy_server)) > total
    answer.locator(".pause").click()
    written_so_far(answer, len(held) + 2)
    assert words_of(answer)[: len(held) - 1] == held[:-1]  # a pause may come in the middle of a word


def test_the_mark_of_a_slider_stands_where_the_server_said(
    open_page: Callable[[], Page], toy_server: Served
) -> None:
    page = open_page()
    _, received = frames_of(page, toy_server.http)
    answer = ask(page)
    set_slider(page, "temperature", "1.3")
    mark = answer.locator(".mark.adjust")
    expect(mark).to_contain_text("temperature 1.3")
    said = next(text for text in received if '"adjusted"' in text)
    index = re.search(r'"index":(\d+)', said)
    assert index
    expect(mark).to_have_attribute("data-index", index[1])
    written_so_far(answer, int(index[1]) + 1)  # a word has a token or more: one of them is behind the mark
    page.keyboard.press("Escape")
    before, after = (
        mark.evaluate(f"(mark) => Number(mark.{side}?.dataset.index)")
        for side in ("previousElementSibling", "nextElementSibling")
    )
    assert before < int(index[1]) <= after


def test_a_clicked_word_is_forgotten_and_gone_on_from_differently(page: Page, toy_server: Served) -> None:
    answer = ask(page)
    written_so_far(answer, 20)
    answer.locator(".word").nth(5).click()
    expect(answer.locator(".mark.rewind")).to_have_count(1)
    written_so_far(answer, 20)
    page.keyboard.press("Escape")
    state(answer, "stopped")
    first = words_of(answer)
    answer.locator(".word").nth(5).click()  # it has ended: a new stream takes it up
    expect(answer).to_have_attribute("data-state", "writing")
    written_so_far(answer, 20)
    page.keyboard.press("Escape")
    second = words_of(answer)
    assert second[:5] == first[:5]
    assert second[5:12] != first[5:12]


def test_a_finger_points_before_it_chooses(browser: Browser, toy_server: Served) -> None:
    context = browser.new_context(has_touch=True, viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(toy_server.http)
    answer = ask(page)
    page.keyboard.press("Escape")
    state(answer, "stopped")
    page.locator("#panel > summary").tap()  # on a phone it lies over the answer
    word = answer.locator(".word").nth(3)
    word.tap()
    expect(word).to_have_class(re.compile("cursor"))
    expect(answer.locator(".mark.rewind")).to_have_count(0)
    word.tap()
    expect(answer.locator(".mark.rewind")).to_have_count(1)
    page.goto("about:blank")
    context.close()


def test_a_word_is_chosen_with_the_keyboard(page: Page) -> None:
    answer = ask(page)
    page.keyboard.press("Escape")
    state(answer, "stopped")
    answer.locator(".prose").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    word = answer.locator(".word").nth(1)
    expect(word).to_have_class(re.compile("cursor"))
    index = word.get_attribute("data-index") or ""  # the first may have several tokens
    expect(page.locator("#announcements")).to_contain_text(f"token {index}")
    page.keyboard.press("Enter")
    expect(answer.locator(".mark.rewind")).to_have_attribute("data-index", index)


def test_words_are_put_into_the_answer(page: Page) -> None:
    answer = ask(page)
    answer.locator(".interject").click()
    state(answer, "paused")
    answer.locator(".interjection input").fill("but then")
    answer.locator(".interjection input").press("Enter")
    expect(answer.locator("ins")).to_have_text("but then")
    state(answer, "writing")


def test_a_message_is_put_into_the_answer(page: Page) -> None:
    answer = ask(page)
    page.keyboard.press("Alt+i")
    answer.locator(".interjection select").select_option("messages")
    answer.locator(".interjection input").fill("Shorter, please")
    answer.locator(".interjection input").press("Enter")
    expect(answer.locator("ins.message")).to_have_text("Shorter, please")


def test_two_streams_write_beside_each_other_and_one_is_stopped_alone(page: Page, toy_server: Served) -> None:
    frames, _ = frames_of(page, toy_server.http)
    answers = ask(page, answers=2)
    answers.nth(0).locator(".stop").click()
    state(answers.nth(0), "stopped")
    standing = len(words_of(answers.nth(1)))
    written_so_far(answers.nth(1), standing + 3)
    assert words_of(answers.nth(0)) != words_of(answers.nth(1))
    first, other = (json.loads(frame) for frame in frames if '"start"' in frame)
    assert other["fork"] == {"request_id": first["request_id"], "at": 0}, "the question is read once"


def test_a_reader_who_is_slow_slows_the_decoding(page: Page, toy_server: Served) -> None:
    before = idle(toy_server)
    page.locator("[name=pace]").fill("10")
    page.locator("[name=window]").fill("4")
    answer = ask(page)
    shown = len(words_of(answer))
    assert decoded(metrics_of(toy_server)) - before <= shown + 4 + 16
    answer.locator(".stop").click()
    state(answer, "stopped")


def test_in_a_worker_all_is_the_same(page: Page, toy_server: Served) -> None:
    page.locator("#connection summary").click()
    page.locator("#worker").check()
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    assert len(page.workers) == 1
    page.locator("#connection summary").click()
    answer = ask(page)
    set_slider(page, "temperature", "1.1")
    expect(answer.locator(".mark.adjust")).to_have_count(1)
    answer.locator(".stop").click()
    state(answer, "stopped")
    idle(toy_server)


def test_a_page_loaded_anew_in_mid_stream_frees_the_engine_and_keeps_the_text(
    page: Page, toy_server: Served
) -> None:
    ask(page)
    page.reload()
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    idle(toy_server)
    answer = page.locator(".answer")
    standing = words_of(answer)
    assert len(standing) >= 8
    answer.locator(".go-on").click()
    written_so_far(answer, len(standing) + 3)
    assert words_of(answer)[: len(standing) - 1] == standing[:-1]


def test_a_server_that_goes_and_comes_back(open_page: Callable[[], Page]) -> None:
    first = Served("--toy-step-ms", "20")
    page = open_page()
    page.goto(first.http)
    answer = ask(page)
    with another_in_its_place(page, first):
        standing = words_of(answer)
        written_so_far(answer, len(standing) + 3)  # its client has told the other server all of it
        expect(answer.locator(".problem")).to_be_hidden()
        assert words_of(answer)[: len(standing) - 1] == standing[:-1]


def test_an_answer_that_only_its_server_knew_goes_on_when_it_is_told_to(
    open_page: Callable[[], Page],
) -> None:
    first = Served("--toy-step-ms", "20")
    page = open_page()
    page.goto(f"{first.http}/#workbench")
    open_panel(page)
    page.get_by_label("What the guard forbids").select_option("says")
    page.get_by_label("Which").fill("secret")
    page.get_by_role("button", name="Add", exact=True).click()
    answer = ask(page)
    with another_in_its_place(page, first):
        expect(answer.locator(".problem")).to_contain_text("Go on")  # another server has no such answer
        standing = len(words_of(answer))
        answer.locator(".go-on").click()
        written_so_far(answer, standing + 3)


@contextmanager
def another_in_its_place(page: Page, first: Served) -> Iterator[None]:
    """A server goes, and one that knows nothing of it comes."""
    first.end()
    expect(page.locator("#connection")).to_have_attribute("data-state", "reconnecting")
    expect(page.locator("#trouble")).to_be_visible()
    second = Served("--toy-step-ms", "20", "--port", str(first.port))
    try:
        expect(page.locator("#connection")).to_have_attribute("data-state", "open")
        expect(page.locator("#trouble")).to_be_hidden()
        yield
    finally:
        second.end()


def test_each_key_cancels_the_suggestion_before_it(page: Page, toy_server: Served) -> None:
    page.locator("nav a", has_text="As you type").click()
    typed = page.locator("#typed")
    typed.fill("The river")
    ghost = page.locator("#ghost")
    expect(ghost).to_have_text(re.compile(r"\w+"))
    typed.press_sequentially(" was")
    expect(page.locator("#typing-note")).to_contain_text("1 cancelled")
    expect(ghost).to_have_text(re.compile(r"\w+"))
    until(toy_server, lambda now: not busy(now))
    typed.press("Tab")
    expect(typed).to_have_value(re.compile(r"The river was \w+"))


def test_the_page_fits_a_phone(browser: Browser, toy_server: Served) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(toy_server.http)
    answer = ask(page)
    answer.locator(".interject").click()
    wider = page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
    page.goto("about:blank")
    context.close()
    assert wider <= 0
