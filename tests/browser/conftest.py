"""Fixtures of the browser tests: a browser, its pages, a toy server. It knows where browsers are found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright

from tests.server.server_process import Served

EXECUTABLES = ["chromium", "chromium-browser", "google-chrome"]
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
TIMEOUT_MS = 20_000  # for what must happen; nothing is expected to take a tenth of it


def browser_on_path() -> str | None:
    return os.environ.get("MIDSTREAM_CHROMIUM") or next(filter(None, map(shutil.which, EXECUTABLES)), None)


def browser_of_playwright(playwright: Playwright) -> str | None:
    path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def install() -> None:
    """Debian's own where that can be had, since it brings the libraries that it needs; else Playwright's."""
    if shutil.which("apt-get") and os.geteuid() == 0:
        subprocess.run(["apt-get", "update"], check=False)
        if subprocess.run(["apt-get", "install", "-y", "chromium"], check=False).returncode == 0:
            return
    subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False)


def find_browser(playwright: Playwright) -> str:
    path = browser_on_path() or browser_of_playwright(playwright)
    if path is None:
        install()
        path = browser_on_path() or browser_of_playwright(playwright)
    assert path, "no browser was found, and none could be installed: set MIDSTREAM_CHROMIUM to one's path"
    return path


@pytest.fixture(scope="module")
def flags() -> list[str]:
    """What the module's browser is started with."""
    return FLAGS


@pytest.fixture(scope="module")
def browser(flags: list[str]) -> Iterator[Browser]:
    """One browser for a module's tests, with a fresh profile.

    It is gone behind them: while Playwright is there, no other test could run an event loop of its own.
    """
    with sync_playwright() as playwright:
        expect.set_options(timeout=TIMEOUT_MS)
        browser = playwright.chromium.launch(executable_path=find_browser(playwright), args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def context(browser: Browser) -> BrowserContext:
    """For all its pages, which have what was loaded before them; the page keeps what it keeps in its tab."""
    return browser.new_context()


@pytest.fixture(scope="session")
def toy_server() -> Iterator[Served]:
    """The server, at a pace at which there is something to steer."""
    server = Served("--toy-step-ms", "20")
    yield server
    server.end()


@pytest.fixture
def open_page(context: BrowserContext) -> Iterator[Callable[[], Page]]:
    """A page that must not complain: neither its scripts nor the browser about its policy."""
    pages: list[Page] = []
    violations: list[str] = []

    def open_one() -> Page:
        pages.append(page := context.new_page())
        page.set_default_timeout(TIMEOUT_MS)
        page.on("pageerror", lambda error: violations.append(str(error)))
        page.on("console", lambda said: violations.append(said.text) if "Policy" in said.text else None)
        page.on("request", lambda request: violations.extend(foreign(request.url, page.url)))
        return page

    yield open_one
    for page in pages:
        if not page.is_closed():
            page.goto("about:blank")  # a page that is left cancels what it has; one that is killed cannot
            page.close()
    assert violations == []


def foreign(url: str, page: str) -> list[str]:
    """The URL, if it is of another place than the page."""
    home = "/".join(page.split("/")[:3])
    return [] if page == "about:blank" or url.startswith((home, "data:", "blob:")) else [url]


@pytest.fixture
def page(open_page: Callable[[], Page], toy_server: Served) -> Page:
    page = open_page()
    page.goto(toy_server.http)
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    return page
