"""The page's picker of a model: which there are, and which are not loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

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
