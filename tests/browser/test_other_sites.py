"""A real browser beside a server without keys: what pages of other sites can do to it, which is nothing.

Every name under `.example` leads to this machine here, as whoever owns a name can have it do (DNS rebinding).
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from midstream.sync import connect
from tests.browser.conftest import FLAGS, TIMEOUT_MS
from tests.server.server_process import PATIENCE_S, Served

ASK = """async ([method, url, body]) => {
  try {
    const answer = await fetch(url, { method, body, headers: { "Content-Type": "application/json" } });
    const names = ["x-request-id", "x-should-retry", "retry-after"];
    const headers = Object.fromEntries(names.map((name) => [name, answer.headers.get(name)]));
    return { status: answer.status, text: await answer.text(), headers };
  } catch (error) {
    return { failed: error.name };
  }
}"""
SOCKET = """(url) => new Promise((resolve) => {
  const socket = new WebSocket(url);
  socket.onmessage = () => resolve("heard");
  socket.onerror = () => resolve("refused");
})"""
ELEMENT = """([kind, url]) => new Promise((resolve) => {
  const element = document.createElement(kind);
  element.onload = element.onerror = () => resolve();
  element.src = url;
  document.body.append(element);
})"""
SOURCE = """(url) => new Promise((resolve) => {
  const source = new EventSource(url);
  source.onmessage = (event) => { resolve(JSON.parse(event.data).type); source.close(); };
  source.onerror = () => resolve("failed");
})"""
AHEAD = """(url) => {
  const rules = document.createElement("script");
  rules.type = "speculationrules";
  rules.textContent = JSON.stringify({ prefetch: [{ source: "list", urls: [url] }] });
  document.head.append(rules);
}"""


class BlankPage(BaseHTTPRequestHandler):
    """Or, where the query says so, none: the way on to another."""

    def do_GET(self) -> None:
        _, _, onward = self.path.partition("?")
        self.send_response(302 if onward else 200)
        if onward:
            self.send_header("Location", onward)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>Elsewhere</title>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def flags() -> list[str]:
    return [*FLAGS, "--host-resolver-rules=MAP *.example 127.0.0.1"]


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[int]:
    """The port of another server, which has a page."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BlankPage) as site:
        Thread(target=site.serve_forever).start()
        yield site.server_port
        site.shutdown()


@pytest.fixture(scope="module")
def served(elsewhere: int) -> Iterator[Served]:
    """It knows a page of elsewhere, and a name of its own."""
    origins, names = f"http://app.example:{elsewhere}", "mine.example"
    served = Served("--toy-step-ms", "20", "--allowed-origins", origins, "--allowed-hosts", names)
    yield served
    served.end()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[[str], Page]]:
    context = browser.new_context()

    def open_one(url: str) -> Page:
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(url)
        return page

    yield open_one
    context.close()


def at(name: str, port: int) -> str:
    return f"http://{name}:{port}"


def asked(page: Page, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    answer: dict[str, Any] = page.evaluate(
        ASK, ["POST" if body else "GET", url, json.dumps(body) if body else None]
    )
    return answer


def listed(served: Served) -> dict[str, dict[str, Any]]:
    with urllib.request.urlopen(served.http + "/v1/streams", timeout=PATIENCE_S) as answer:
        return {stream["request_id"]: stream for stream in json.load(answer)["streams"]}


def test_a_page_whose_name_was_pointed_here_reads_nothing(
    served: Served, visit: Callable[[str], Page]
) -> None:
    page = visit(at("evil.example", served.port))
    with (
        connect(served.http) as client,
        client.start(prompt="Hi", ignore_eos=True, window=4) as stream,
    ):
        for path in ("/v1/streams", f"/v1/streams/{stream.request_id}", "/metrics", "/v1/models"):
            answer = asked(page, path)
            assert answer["status"] == 403, answer
            assert "--allowed-hosts" in answer["text"]
        assert asked(page, "/v1/completions", {"prompt": "Hi"})["status"] == 403
        assert page.evaluate(SOCKET, f"ws://evil.example:{served.port}/v1/realtime") == "refused"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "evil.example"])
@pytest.mark.parametrize("kind", ["img", "iframe"])
def test_what_a_page_of_another_site_shows_takes_no_stream_from_anybody(
    served: Served, elsewhere: int, visit: Callable[[str], Page], kind: str, host: str
) -> None:
    page = visit(at("evil.example", elsewhere))
    with (
        connect(served.http) as client,
        client.start(prompt="Hi", ignore_eos=True, window=4) as stream,
    ):
        chunks = iter(stream)
        assert next(chunks).index == 0
        page.evaluate(ELEMENT, [kind, at(host, served.port) + f"/v1/streams/{stream.request_id}"])
        for _ in range(20):
            next(chunks)


# To the others a browser does not say which page asks, and they lead to this machine all the same.
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "[::ffff:127.0.0.1]", "mine.example"])
def test_what_nobody_reads_is_not_read_by_a_page_of_another_site(
    served: Served, elsewhere: int, visit: Callable[[str], Page], host: str
) -> None:
    page = visit(at("evil.example", elsewhere))
    with unread(served) as name:
        page.evaluate(ELEMENT, ["img", at(host, served.port) + f"/v1/streams/{name}"])


# What a browser fetches ahead for a page, and where it is led to from an address that somebody typed, it asks
# for as if that had been typed itself.
def test_what_nobody_reads_is_not_read_ahead_for_a_page_of_another_site(
    served: Served, elsewhere: int, visit: Callable[[str], Page]
) -> None:
    page = visit(at("evil.example", elsewhere))
    with unread(served) as name, refused(served):
        page.evaluate(AHEAD, f"{served.http}/v1/streams/{name}")


def test_what_nobody_reads_is_not_read_by_whoever_is_led_there_from_an_address_that_they_typed(
    served: Served, elsewhere: int, visit: Callable[[str], Page]
) -> None:
    with unread(served) as name, refused(served):
        visit(at("evil.example", elsewhere) + f"/?{served.http}/v1/streams/{name}")


@contextmanager
def unread(served: Served) -> Iterator[str]:
    """A stream that nobody reads, and nobody has read when this ends."""
    with connect(served.http) as client:
        stream = client.start(prompt="Hi", ignore_eos=True, on_disconnect="pause")
    name = stream.request_id
    until_detached(served, name)
    before = counted(served, "stream_retries_total")
    yield name
    assert (listed(served)[name]["paused"], counted(served, "stream_retries_total")) == ("detached", before)
    with connect(served.http) as client:
        client.attach(name).cancel()


@contextmanager
def refused(served: Served) -> Iterator[None]:
    """Somebody is, meanwhile, who follows a stream; or has it."""
    names = "midstream_refusals_total", "stream_retries_total"
    before = [counted(served, name) for name in names]
    yield
    while [counted(served, name) for name in names] == before:
        pass


def counted(served: Served, name: str) -> list[str]:
    """How often somebody was refused, or came to listen to a stream."""
    return [line for line in served.get("/metrics")[1].splitlines() if line.startswith(name)]


def until_detached(served: Served, name: str) -> None:
    while listed(served)[name]["paused"] != "detached":
        pass


def test_a_page_of_an_allowed_origin_reads_answers_streams_and_errors_and_another_nothing(
    served: Served, elsewhere: int, visit: Callable[[str], Page]
) -> None:
    page, other = (visit(at(f"{name}.example", elsewhere)) for name in ("app", "evil"))
    url = served.http + "/v1/completions"
    body = {"prompt": "Hi", "max_tokens": 3, "ignore_eos": True, "request_id": "app's"}
    whole = asked(page, url, body)
    assert (whole["status"], whole["headers"]["x-request-id"]) == (200, "app's")
    stream = asked(page, url, body | {"request_id": "second", "stream": True})
    assert stream["text"].endswith("data: [DONE]\n\n")
    wrong = asked(page, url, body | {"temprature": 1})
    assert (wrong["status"], wrong["headers"]["x-should-retry"]) == (400, "false")
    assert "temprature" in wrong["text"]
    assert asked(page, served.http + "/v1/streams/nothing")["status"] == 404
    assert page.evaluate(SOURCE, served.http + "/v1/streams/second") == "snapshot"
    assert page.evaluate(SOCKET, served.url) == "heard"
    for refused in (asked(other, url, body), asked(other, served.http + "/v1/streams")):
        assert refused == {"failed": "TypeError"}, "the browser lets it read nothing"
    assert other.evaluate(SOURCE, served.http + "/v1/streams/second") == "failed"
    assert other.evaluate(SOCKET, served.url) == "refused"


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "page.localhost", "mine.example"])
def test_our_own_page_comes_in_by_any_name_that_is_ours(
    served: Served, visit: Callable[[str], Page], name: str
) -> None:
    page = visit(at(name, served.port))
    expect(page.locator("#connection")).to_have_attribute("data-state", "open", timeout=TIMEOUT_MS)
    assert asked(page, "/v1/streams")["status"] == 200
