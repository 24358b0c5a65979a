"""The page's key prompt, at a server that wants a key: it says what is wrong, and keeps the key to itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from playwright.sync_api import Page, Request, expect

from realtime.keys_command import main
from tests.browser.cutting_proxy_thread import cutting_proxy
from tests.browser.page_user import ask, state, words_of, written_so_far
from tests.server.server_process import Served

STORED = "() => JSON.stringify({ ...sessionStorage, ...localStorage }) + document.cookie + location.href"


class KeyedServer:
    """A server with a key file, and keys of its own for those who lose theirs."""

    def __init__(self, folder: Path) -> None:
        self._file = str(folder / "keys.toml")
        self.alice = self._add("alice")
        self.bob = self._add("bob")
        self.carol = self._add("carol")
        self.served = Served("--keys-file", self._file, "--toy-step-ms", "20")

    def _add(self, name: str) -> str:
        with redirect_stdout(StringIO()) as told:
            assert main(["add", name, "--file", self._file], {}) == 0
        return told.getvalue().strip()

    def revoke(self, name: str) -> None:
        assert main(["revoke", name, "--file", self._file], {}) == 0


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedServer]:
    keyed = KeyedServer(tmp_path_factory.mktemp("keys"))
    yield keyed
    keyed.served.end()


@pytest.fixture
def asked(open_page: Callable[[], Page], keyed: KeyedServer) -> Page:
    """A page that has asked for a key."""
    page = open_page()
    page.goto(keyed.served.http)
    locked(page)
    return page


def locked(page: Page) -> None:
    expect(page.locator("#connection")).to_have_attribute("data-state", "locked")
    expect(page.locator("#key-prompt")).to_be_visible()


def unlock(page: Page, key: str) -> None:
    page.locator("#key").fill(key)
    page.locator("#key").press("Enter")


def connected(page: Page) -> None:
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    expect(page.locator("#key-prompt")).to_be_hidden()


def test_a_server_without_keys_shows_nothing_of_them(page: Page) -> None:
    expect(page.locator("#key-prompt")).to_be_hidden()
    page.locator("#connection summary").click()
    expect(page.locator("#worker")).to_be_visible()
    expect(page.locator("#keyed")).to_be_hidden()


def test_it_asks_says_what_is_wrong_and_lets_the_right_one_in(asked: Page, keyed: KeyedServer) -> None:
    expect(asked.locator("#key")).to_be_focused()
    expect(asked.locator("#key-prompt-why")).to_be_hidden()
    for wrong in ("ms_wrong", "two words", "schl\u00fcssel"):
        unlock(asked, wrong)
        expect(asked.locator("#key-prompt-why")).to_contain_text("does not know this key")
        expect(asked.locator("#key")).to_have_value(wrong)
        expect(asked.locator("#key-prompt-go")).to_be_enabled()
    unlock(asked, f" {keyed.alice} ")
    connected(asked)
    expect(asked.locator("#question")).to_be_focused()
    answer = ask(asked)
    answer.locator(".stop").click()
    state(answer, "stopped")


def test_the_key_goes_to_one_place_and_is_kept_in_none(asked: Page, keyed: KeyedServer) -> None:
    seen: list[Request] = []
    asked.on("request", lambda request: seen.append(request))  # noqa: PLW0108 - it marks what it is given
    unlock(asked, keyed.alice)
    connected(asked)
    (asking,) = [request for request in seen if keyed.alice in str(request.all_headers())]
    assert (asking.method, asking.url) == ("POST", f"{keyed.served.http}/v1/realtime/client_secrets")
    assert keyed.alice not in asked.evaluate(STORED)
    assert asked.locator("#key").input_value() == ""
    asked.reload()
    locked(asked)


def test_a_key_that_is_to_be_kept_lives_through_reloads_until_it_is_forgotten(
    asked: Page, keyed: KeyedServer
) -> None:
    asked.locator("#keep-key").check()
    unlock(asked, keyed.alice)
    connected(asked)
    asked.reload()
    connected(asked)
    asked.locator("#connection summary").click()
    asked.locator("#forget-key").click()
    locked(asked)
    expect(asked.locator("#key-prompt-why")).to_be_hidden()
    assert keyed.alice not in asked.evaluate(STORED)


def test_a_wrong_key_is_not_kept_either(asked: Page) -> None:
    asked.locator("#keep-key").check()
    unlock(asked, "ms_wrong")
    expect(asked.locator("#key-prompt-why")).to_be_visible()
    assert "ms_wrong" not in asked.evaluate(STORED)


def test_who_has_no_key_at_hand_may_come_back_to_it(asked: Page, keyed: KeyedServer) -> None:
    asked.locator("#key-prompt-later").click()
    expect(asked.locator("#key-prompt")).to_be_hidden()
    expect(asked.locator("#trouble")).to_contain_text("wants a key")
    expect(asked.locator("#ask")).to_be_disabled()
    asked.locator("#try-now").click()
    unlock(asked, keyed.alice)
    connected(asked)
    expect(asked.locator("#trouble")).to_be_hidden()


@pytest.mark.parametrize("worker", [False, True])
def test_each_connection_has_a_secret_of_its_own(
    open_page: Callable[[], Page], keyed: KeyedServer, worker: bool
) -> None:
    with cutting_proxy(keyed.served.port) as proxy:
        page = open_page()
        page.goto(proxy.url)
        locked(page)
        unlock(page, keyed.alice)
        connected(page)
        if worker:
            page.locator("#connection summary").click()
            page.locator("#worker").check()
            connected(page)
            page.locator("#connection summary").click()
        secrets = set()
        answer = ask(page)
        for words in (20, 35):
            written_so_far(answer, words)
            with page.expect_response("**/client_secrets") as response:
                proxy.cut()
            secrets.add(response.value.json()["secret"])
        standing = words_of(answer)
        written_so_far(answer, len(standing) + 20)
        assert words_of(answer)[: len(standing) - 1] == standing[:-1]
        assert len(secrets) == 2
        page.goto("about:blank")


def test_a_key_that_is_revoked_ends_what_runs_and_another_goes_on(asked: Page, keyed: KeyedServer) -> None:
    unlock(asked, keyed.bob)
    connected(asked)
    answer = ask(asked)
    keyed.revoke("bob")
    locked(asked)
    expect(asked.locator("#key-prompt-why")).to_contain_text("was revoked")
    expect(answer).to_have_attribute("data-state", "ended")
    unlock(asked, keyed.bob)
    expect(asked.locator("#key-prompt-why")).to_contain_text("does not know this key")
    unlock(asked, keyed.alice)
    connected(asked)
    standing = words_of(answer)
    answer.locator(".go-on").click()
    written_so_far(answer, len(standing) + 5)
    assert words_of(answer)[: len(standing) - 1] == standing[:-1]


def test_a_key_that_is_revoked_meanwhile_does_not_come_back(
    open_page: Callable[[], Page], keyed: KeyedServer
) -> None:
    with cutting_proxy(keyed.served.port) as proxy:
        page = open_page()
        page.goto(proxy.url)
        locked(page)
        unlock(page, keyed.carol)
        connected(page)
        proxy.refuse(True)
        proxy.cut()
        expect(page.locator("#connection")).to_have_attribute("data-state", "reconnecting")
        keyed.revoke("carol")
        proxy.refuse(False)
        locked(page)
        expect(page.locator("#key-prompt-why")).to_contain_text("revoked")
        page.goto("about:blank")


def test_a_server_that_is_away_is_said_where_the_key_is_typed(
    open_page: Callable[[], Page], keyed: KeyedServer
) -> None:
    with cutting_proxy(keyed.served.port) as proxy:
        page = open_page()
        page.goto(proxy.url)
        locked(page)
        proxy.refuse(True)
        proxy.cut()
        unlock(page, keyed.alice)
        expect(page.locator("#key-prompt-why")).to_contain_text("cannot be reached")
        proxy.refuse(False)
        connected(page)
        page.goto("about:blank")


def test_a_server_that_does_not_answer_is_tried_again(
    open_page: Callable[[], Page], toy_server: Served
) -> None:
    page = open_page()
    page.add_init_script(
        "AbortSignal.timeout = () => AbortSignal.abort(new DOMException('', 'TimeoutError'))"
    )
    page.goto(toy_server.http)
    expect(page.locator("#connection")).to_have_attribute("data-state", "waiting")
    expect(page.locator("#trouble")).to_contain_text("cannot be reached")
