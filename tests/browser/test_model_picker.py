"""The page's picker of a model: which there are, and which are not loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from tests.server.server_process import Served, serving_models

FILE = """
[models.large]
source = "toy"

[models.small]
source = "toy"
keep_alive = "1h"
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving_models(tmp_path_factory.mktemp("models"), FILE) as served:
        yield served


def test_it_says_what_is_loaded_and_asks_again_when_somebody_chooses(
    open_page: Callable[[], Page], served: Served
) -> None:
    page = open_page()
    page.goto(served.http)
    expect(page.locator("#model option")).to_have_text(["large", "small (not loaded)"])
    page.locator("#model").select_option("small")
    page.locator("#question").fill("Say something")
    page.locator("#question").press("Enter")
    expect(page.locator(".answer .word").first).to_be_attached(timeout=30_000)  # it is loaded for it
    page.locator("#model").hover()
    expect(page.locator("#model option")).to_have_text(["large", "small"])
    expect(page.locator("#model")).to_have_value("small")


def test_whoever_passes_it_again_and_again_asks_once_until_that_is_answered(
    open_page: Callable[[], Page], served: Served
) -> None:
    """A browser has six connections to a server: on a line that is dead all would wait, and so would whatever
    else is asked by HTTP."""
    page, asked = open_page(), list[Route]()

    def hold(route: Route) -> None:
        asked.append(route)

    page.route("**/v1/models", hold)
    page.goto(served.http)
    expect(page.locator("#model option")).to_have_count(2)
    pass_by = "(select) => select.dispatchEvent(new PointerEvent('pointerenter'))"
    for _ in range(8):
        page.locator("#model").evaluate(pass_by)
    with page.expect_response("**/icon.svg"):  # all that was asked before has been heard of here
        page.evaluate("() => fetch('/icon.svg')")
    assert len(asked) == 1
    asked.pop().abort()
    with page.expect_request("**/v1/models"):
        page.locator("#model").evaluate(f"(select) => void setInterval({pass_by}, 50, select)")
