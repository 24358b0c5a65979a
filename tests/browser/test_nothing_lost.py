"""What somebody types, chooses or keeps on the page is not lost, and leaves nothing that runs for nobody:
also where the server refuses it, or is slow, and where the browser keeps nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, WebSocketRoute, expect

from tests.server.server_process import Served

Frame = dict[str, Any]

TEXT = ["Once", " upon", " a", " time"]
ANSWERS = {"pause": "paused", "resume": "resumed", "inject": "injected"}


class ScriptedServer:
    """A server that always says the same, refuses some frames, and begins no stream while it holds."""

    def __init__(self, page: Page) -> None:
        self.refuses: set[str] = set()
        self.ignores: set[str] = set()
        self.holds = False
        self.running: list[str] = []
        self.started = 0
        self.asked: Frame = {}  # what the last of them was started with
        self._held: list[Frame] = []
        self._sent: Counter[str] = Counter()  # events, by their stream
        page.route_web_socket("**/v1/realtime", self._connect)

    def release(self) -> None:
        self.holds = False
        for start in self._held:
            self._begin(start)

    def finish(self) -> None:
        """All that runs comes to its own end."""
        for request_id in list(self.running):
            self._end({"request_id": request_id}, "length")

    def _connect(self, socket: WebSocketRoute) -> None:
        self._socket = socket
        socket.on_message(self._receive)
        ready = {"type": "ready", "protocol": 1, "session_id": "s", "models": ["m"], "limits": {}}
        socket.send(json.dumps(ready))

    def _receive(self, data: str | bytes) -> None:
        frame = json.loads(data)
        match frame["type"]:
            case kind if kind in self.refuses:
                error = {"code": "rate_limited", "message": "too many", "status": 429, "retryable": True}
                self._send(frame, type="error", **error)
            case kind if kind in self.ignores:
                pass
            case "start" if self.holds:
                self._held.append(frame)
            case "start":
                self._begin(frame)
            case "cancel":
                self._end(frame, "cancelled")
            case kind if kind in ANSWERS:
                more = {"reason": "client"} if kind == "pause" else {}
                self._send(frame, type=ANSWERS[kind], index=len(TEXT), count=1, **more)

    def _begin(self, start: Frame) -> None:
        self.started += 1
        self.asked = start
        self.running.append(start["request_id"])
        self._send(start, type="started", model="m", prompt_tokens=1, params={})
        for index, delta in enumerate(TEXT):
            self.say(start["request_id"], index, delta)

    def say(self, request_id: str, index: int, delta: str, count: int = 1) -> None:
        token = {"index": index, "count": count, "delta": delta, "tokens": [index] * count}
        self._send({"request_id": request_id}, type="token", **token)

    def _end(self, frame: Frame, reason: str) -> None:
        self.running.remove(frame["request_id"])
        about = {"usage": {"discarded_tokens": 0}, "timing": {"ttft_ms": 1, "tokens_per_s": 1}}
        self._send(frame, type="final", index=len(TEXT), finish_reason=reason, **about)

    def _send(self, frame: Frame, **event: Any) -> None:
        about = {name: frame[name] for name in ("request_id", "ref") if name in frame}
        if event["type"] != "error":
            event["seq"] = self._sent[frame["request_id"]]
            self._sent[frame["request_id"]] += 1
        self._socket.send(json.dumps(about | event))


@pytest.fixture
def blank(open_page: Callable[[], Page]) -> Page:
    return open_page()


@pytest.fixture
def server(blank: Page) -> ScriptedServer:
    return ScriptedServer(blank)


@pytest.fixture
def page(blank: Page, server: ScriptedServer, toy_server: Served) -> Page:
    blank.goto(toy_server.http)
    expect(blank.locator("#connection")).to_have_attribute("data-state", "open")
    return blank


@pytest.fixture
def answer(page: Page) -> Locator:
    """One that is being written."""
    return ask(page, "Why?")


def ask(page: Page, question: str) -> Locator:
    page.locator("#question").fill(question)
    expect(page.locator("#ask")).to_be_enabled()
    page.locator("#question").press("Enter")
    answer = page.locator(".answer").last
    expect(answer.locator(".word")).to_have_count(len(TEXT))
    return answer


def put_in(answer: Locator, text: str) -> Locator:
    answer.locator(".interject").click()
    field = answer.locator(".interjection input")
    field.fill(text)
    field.press("Enter")
    return field


def test_what_is_put_in_and_refused_stands_there_to_be_put_in_again(
    answer: Locator, server: ScriptedServer
) -> None:
    server.refuses = {"inject"}
    field = put_in(answer, "But no")
    expect(answer.locator(".problem")).to_contain_text("Too much at once")
    expect(field).to_be_visible()
    expect(field).to_have_value("But no")
    server.refuses = set()
    field.press("Enter")
    expect(answer.locator(".mark.inject")).to_have_text("But no")
    expect(field).to_be_hidden()
    expect(field).to_have_value("")


def test_an_answer_whose_form_is_asked_for_twice_goes_on_behind_it(answer: Locator) -> None:
    answer.locator(".interject").click()
    expect(answer.locator(".state")).to_have_text("paused")
    answer.locator(".interject").click()
    answer.locator(".interjection .leave").click()
    expect(answer.locator(".state")).to_have_text("writing")


def test_of_several_words_chosen_while_nothing_can_begin_the_last_counts(
    answer: Locator, server: ScriptedServer
) -> None:
    choose_while_held(answer, server, 3, 2, 1, 1)
    server.release()
    expect(answer.locator(".mark.rewind")).to_have_count(1)
    expect(answer.locator(".word")).to_have_count(1 + len(TEXT))
    answer.locator(".stop").click()
    expect(answer.locator(".state")).to_have_text("stopped")
    assert (server.running, server.started) == ([], 3)


def test_who_stops_behind_choosing_a_word_has_nothing_written(
    answer: Locator, server: ScriptedServer
) -> None:
    choose_while_held(answer, server, 3, 2)
    answer.locator(".stop").click()
    server.release()
    expect(answer.locator(".state")).to_have_text("stopped")
    assert (server.running, server.started) == ([], 2)


def choose_while_held(answer: Locator, server: ScriptedServer, *words: int) -> None:
    """Words of an answer that has ended, one after the other; the stream for the first does not begin."""
    server.finish()
    expect(answer.locator(".state")).to_have_text("reached its limit")
    server.holds = True
    for word in words:
        answer.locator(".word").nth(word).click()
        expect(answer.locator(".state")).to_have_text("waiting")


def test_a_pause_that_is_refused_holds_nothing_back(answer: Locator, server: ScriptedServer) -> None:
    server.refuses = {"pause"}
    answer.locator(".pause").click()
    expect(answer.locator(".problem")).to_contain_text("Too much at once")
    server.say(server.running[0], len(TEXT), " more")
    expect(answer.locator(".word")).to_have_count(len(TEXT) + 1)


def test_a_conversation_is_cleared_at_once_and_what_is_asked_behind_it_stays(
    page: Page, answer: Locator, server: ScriptedServer
) -> None:
    server.ignores = {"cancel"}
    page.locator("#clear").click()
    expect(page.locator("#turns")).to_be_empty()
    ask(page, "And now?")
    server.finish()
    expect(answer.locator(".state")).to_have_text("reached its limit")
    expect(page.locator(".question")).to_have_text("And now?")


FORBIDDEN = """Object.defineProperty(window, "sessionStorage", {
    get() { throw new DOMException("Access is denied for this document.", "SecurityError"); },
})"""


def test_a_browser_that_forbids_its_storage_has_the_page_all_the_same(
    blank: Page, server: ScriptedServer, toy_server: Served
) -> None:
    blank.add_init_script(FORBIDDEN)
    blank.goto(toy_server.http)
    ask(blank, "Why?")
    blank.reload()
    expect(blank.locator("#turns")).to_be_empty()
    ask(blank, "Why?")
    blank.locator("#stop-all").click()
    blank.locator("#clear").click()
    expect(blank.locator(".answer")).to_have_count(0)


def test_a_tab_that_nobody_sees_may_be_discarded_without_a_word(
    blank: Page, server: ScriptedServer, toy_server: Served
) -> None:
    blank.add_init_script("""addEventListener("pagehide", (event) => event.stopImmediatePropagation())""")
    blank.goto(toy_server.http)
    answer = ask(blank, "Why?")
    blank.evaluate(
        """() => {
            Object.defineProperty(document, "visibilityState", { value: "hidden" });
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )
    blank.reload()
    expect(answer.locator(".prose")).to_have_text("Once upon a time")


def test_where_the_storage_is_full_the_oldest_questions_go_first_and_that_is_said(page: Page) -> None:
    ask(page, "Why? " * 40_000)
    page.locator("#stop-all").click()
    ask(page, "And then?")
    leave_room(page, 300_000)
    page.reload()
    expect(page.locator(".question")).to_have_text("And then?")
    expect(page.locator("#turns > .problem")).to_contain_text("The first question and its answers")
    page.reload()
    expect(page.locator("#turns > .problem")).to_contain_text("The first question and its answers")
    page.locator("#clear").click()
    expect(page.locator("#turns")).to_be_empty()
    page.reload()
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    expect(page.locator("#turns")).to_be_empty()


def test_a_question_takes_its_room_in_the_storage_however_many_stand_behind_it(
    page: Page, server: ScriptedServer
) -> None:
    questions = [f"{number}? " + "Why?" * 12_000 for number in range(6)]
    for question in questions:
        answer = ask(page, question)
        page.locator("#stop-all").click()
        expect(answer.locator(".state")).to_have_text("stopped")
    leave_room(page, 800_000)
    page.reload()
    expect(page.locator(".question")).to_have_count(6)
    expect(page.locator("#turns > .problem")).to_have_count(0)
    page.locator(".go-on").last.click()
    expect(page.locator(".answer").last.locator(".prose")).to_have_text("Once upon a timeOnce upon a time")
    said = [message["content"] for message in server.asked["messages"]]
    assert said == [text for question in questions for text in (question, "".join(TEXT))][:-1]


def leave_room(page: Page, characters: int) -> None:
    """Fill this tab's storage, but for so much."""
    page.evaluate(
        """(room) => {
            let size = 0;
            for (let more = 2 ** 24; more >= 1024; more /= 2) {
                try { sessionStorage.setItem("filler", "x".repeat(size + more)); size += more; } catch {}
            }
            sessionStorage.setItem("filler", "x".repeat(size - room));
        }""",
        characters,
    )


def test_text_that_comes_with_no_token_is_shown(answer: Locator, server: ScriptedServer) -> None:
    """What was held back, as it might have begun a stop string, and at the end does not."""
    (request_id,) = server.running
    server.say(request_id, len(TEXT), "ly", count=0)
    server.finish()
    expect(answer.locator(".word").last).to_have_text("timely")
