"""Hostile text of a model: markup, scripts (XSS) and bidi controls in it do nothing to the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from tests.server.server_process import Served

MARKUP = '<img src=x onerror="window.harmed=1"><script>window.harmed=1</script>'
REVERSED = "\u202egnp.exe\u2066 \x1b[31mred\x00 \x9b"


def hostile_server(socket: WebSocketRoute, finish_reason: str = "error") -> None:
    """A server whose model says hostile things."""

    def send(event: dict[str, Any]) -> None:
        socket.send(json.dumps(event))

    def receive(data: str | bytes) -> None:
        frame = json.loads(data)
        if frame["type"] != "start":
            return
        about = {"request_id": frame["request_id"]}
        events: list[dict[str, Any]] = [
            {"type": "started", "model": MARKUP, "prompt_tokens": 1, "params": {}, "ref": frame.get("ref")},
            {"type": "token", "index": 0, "count": 1, "delta": MARKUP, "tokens": [1]},
            {"type": "token", "index": 1, "count": 1, "delta": f" {REVERSED}", "tokens": [2]},
            {"type": "final", "index": 2, "finish_reason": finish_reason, "stop_reason": MARKUP + REVERSED}
            | {"usage": {"discarded_tokens": 0}, "timing": {"ttft_ms": 1, "tokens_per_s": 1}},
        ]
        for seq, event in enumerate(events):
            send(about | event | {"seq": seq})

    socket.on_message(receive)
    send({"type": "ready", "protocol": 1, "session_id": "s", "models": [MARKUP + REVERSED], "limits": {}})


@pytest.fixture
def answered(open_page: Callable[[], Page], toy_server: Served) -> Page:
    page = open_page()
    page.route_web_socket("**/v1/realtime", hostile_server)
    page.goto(toy_server.http)
    page.locator("#question").fill(MARKUP)
    page.locator("#question").press("Enter")
    expect(page.locator(".answer .state")).to_have_text("broken off")
    return page


def test_markup_is_shown_and_does_nothing(answered: Page) -> None:
    expect(answered.locator(".prose")).to_contain_text(MARKUP)
    expect(answered.locator(".answer .problem")).to_contain_text("<img")
    expect(answered.locator(".question")).to_have_text(MARKUP)
    expect(answered.locator("main img, main script, header img")).to_have_count(0)
    assert answered.evaluate("() => window.harmed") is None


def test_controls_are_made_visible_and_the_text_is_isolated(answered: Page) -> None:
    text = answered.locator(".prose bdi")
    expect(text).to_contain_text("\u27e8RLO\u27e9gnp.exe\u27e8LRI\u27e9")
    expect(text).to_contain_text("\u241b[31mred\u2400 \u27e89B\u27e9")
    assert not set(text.inner_text()) & set("\u202e\u2066\x1b\x00\x9b")
    assert text.evaluate("(text) => getComputedStyle(text).unicodeBidi") == "isolate"


def test_so_is_an_end_that_the_page_does_not_know(open_page: Callable[[], Page], toy_server: Served) -> None:
    page = open_page()
    page.route_web_socket("**/v1/realtime", partial(hostile_server, finish_reason=f"moved {REVERSED}"))
    page.goto(toy_server.http)
    page.locator("#question").fill("Hi")
    page.locator("#question").press("Enter")
    expect(page.locator(".answer .state")).to_contain_text("moved \u27e8RLO\u27e9gnp.exe")


def test_errors_and_names_are_shown_so_too(answered: Page) -> None:
    for place in (".answer .problem", "#model option"):
        shown = answered.locator(place).text_content() or ""
        assert "\u27e8RLO\u27e9gnp.exe" in shown
        assert not set(shown) & set("\u202e\u2066\x1b\x00\x9b")
    found = answered.evaluate(
        """async (words) => {
            const { textSearch } = await import("/bench/text-search.js");
            const { tools: [tool], element } = textSearch();
            tool.run({ words });
            return element.textContent;
        }""",
        REVERSED,
    )
    assert "\u27e8RLO\u27e9gnp.exe" in found


@pytest.mark.parametrize("levels", [3, 13, 3000])
def test_a_call_that_is_nested_deep_is_shown_as_it_is(
    levels: int, open_page: Callable[[], Page], toy_server: Served
) -> None:
    given = "[" * levels + "1,1" + "]" * levels

    def server(socket: WebSocketRoute) -> None:
        def receive(data: str | bytes) -> None:
            frame = json.loads(data)
            if frame["type"] != "start":
                return
            call: dict[str, Any] = {"index": 0, "call_id": "c"}
            events: list[dict[str, Any]] = [
                {"type": "started", "model": "m", "prompt_tokens": 1, "params": {}, "ref": frame.get("ref")},
                call | {"type": "tool_call", "name": "f"},
                call | {"type": "tool_arguments", "count": 1, "delta": given},
                call | {"type": "tool_call_done", "end": 1},
                {"type": "token", "index": 0, "count": 1, "delta": "a", "tokens": [1]},
                {"type": "final", "index": 1, "finish_reason": "tool_calls"}
                | {"usage": {"discarded_tokens": 0}, "timing": {"ttft_ms": 1, "tokens_per_s": 1}},
            ]
            for seq, event in enumerate(events):
                socket.send(json.dumps({"request_id": frame["request_id"], "seq": seq} | event))

        socket.on_message(receive)
        socket.send(
            json.dumps({"type": "ready", "protocol": 1, "session_id": "s", "models": ["m"], "limits": {}})
        )

    page = open_page()
    page.route_web_socket("**/v1/realtime", server)
    page.goto(toy_server.http)
    page.locator("#question").fill("Hi")
    page.locator("#question").press("Enter")
    expect(page.locator(".answer .state")).to_have_text("called tools")
    shown = page.locator(".call pre").first.text_content()
    assert shown == (given if levels > 12 else json.dumps(json.loads(given), indent=2))
