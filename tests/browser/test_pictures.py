"""The README's pictures can be made: of a model that says what it is told to."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser

from docs import pictures
from tests.server.server_process import Served

CLOSED = "}\n</tool_call>⏭It is 84."
LONG = " + ".join(["1"] * 250)
QUESTION = (
    f'⟦<tool_call>\n{{"name": "calculate", "arguments": {{"expression": "{LONG}"}}}}\n</tool_call>⏭{CLOSED}⟧'
)
MOST_BYTES = 1_500_000


@pytest.fixture(scope="module")
def scripted() -> Iterator[Served]:
    # The call has thirty seconds to go when it is stopped: a busy machine's browser is slow to click.
    server = Served("--toy-step-ms", "30", scripted=True)
    yield server
    server.end()


def test_a_call_is_stopped_and_changed_and_each_frame_is_kept(
    browser: Browser, scripted: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "QUESTION", QUESTION)
    monkeypatch.setattr(pictures, "TOKENS", 2000)  # bytes are its tokens
    monkeypatch.setattr(pictures, "TIMEOUT_MS", 60_000)  # so that what is waited for in vain is named
    page = pictures.workbench(browser, scripted.http, "dark", pictures.FILM)
    made = pictures.film(page)
    made.save(tmp_path / "film.webp")
    with Image.open(tmp_path / "film.webp") as film:
        assert film.size == pictures.FILM
        assert getattr(film, "n_frames", 1) >= 3
    shot = Image.open(io.BytesIO(page.screenshot()))
    assert shot.size == pictures.FILM
    assert json.loads(page.locator(".call pre").first.inner_text()) == json.loads(pictures.MEANT)


def test_the_pictures_that_the_readme_shows_are_there_and_small() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    named = re.findall(r"docs/images/[\w.-]+", readme)
    assert {path.rpartition(".")[2] for path in named} == {"png", "webp"}
    for path in named:
        assert (Path(__file__).parents[2] / path).stat().st_size < MOST_BYTES
