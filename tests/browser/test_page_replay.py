"""Records on the page: an answer that was steered is saved, and the file is replayed here and elsewhere."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from midstream.cli.replay import main as replay
from midstream.recording import read_records
from tests.browser.page_user import ask, set_slider, state, written_so_far
from tests.server.server_process import Served


@pytest.fixture
def saved(page: Page, tmp_path: Path) -> Path:
    """The record of an answer that was steered in every way that the page has."""
    answer = ask(page)
    set_slider(page, "temperature", "1.3")
    expect(answer.locator(".mark.adjust")).to_be_visible()
    written_so_far(answer, 20)
    answer.locator(".interject").click()
    answer.locator(".interjection input").fill("But \x1b[31mno")
    answer.locator(".interjection input").press("Enter")
    expect(answer.locator(".mark.inject")).to_be_visible()
    written_so_far(answer, 30)
    answer.locator(".word").nth(9).click()
    expect(answer.locator(".mark.rewind")).to_be_visible()
    written_so_far(answer, 16)
    answer.locator(".stop").click()
    state(answer, "stopped")
    with page.expect_download() as download:
        answer.locator(".save").click()
    assert download.value.suggested_filename == "midstream-record.jsonl"
    path = tmp_path / "record.jsonl"
    download.value.save_as(path)
    return path


def load(page: Page, path: Path) -> Locator:
    """What the dialog says of it."""
    if not page.locator("#replay").is_visible():
        page.locator("#open-replay").click()
    page.locator("#record").set_input_files(path)
    return page.locator("#replayed li")


def test_an_answer_that_was_steered_is_saved_and_replayed(page: Page, saved: Path) -> None:
    (record,) = read_records(saved)
    kinds = {type(line).__name__ for line in record.lines}
    assert kinds >= {"Tokens", "Adjust", "Inject", "Rewind", "Pause", "Resume", "Final"}
    replayed = load(page, saved)
    expect(replayed.locator(".state")).to_contain_text("equal: ")
    expect(replayed.locator(".title")).to_have_text("Say something long")
    expect(replayed).to_contain_text("The fingerprints are equal, fp_")


def test_what_the_page_saved_the_command_replays(
    saved: Path, toy_server: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert json.loads(saved.read_text().splitlines()[0])["type"] == "start"
    said = replay_elsewhere("--url", toy_server.http, str(saved))
    assert said == 0, capsys.readouterr()


def replay_elsewhere(*arguments: str) -> int:
    """In a thread of its own: while Playwright is there, this one can run no event loop."""
    with ThreadPoolExecutor() as pool:
        return pool.submit(replay, arguments).result()


def test_the_first_difference_is_shown_with_both_log_probabilities(page: Page, saved: Path) -> None:
    lines = [json.loads(line) for line in saved.read_text().splitlines()]
    lines[0]["fingerprint"] = "fp_other"
    forged = next(line for line in lines if line["type"] == "tokens" and line["index"] == 5)
    forged["tokens"][0] ^= 1
    saved.write_text("\n".join(map(json.dumps, lines)))
    replayed = load(page, saved)
    expect(replayed.locator(".state")).to_have_text("differs at token 5")
    expect(replayed).to_contain_text("Recorded: ")
    expect(replayed).to_contain_text("log probability -")
    expect(replayed).to_contain_text("The fingerprints differ: recorded fp_other, here fp_")


def test_a_file_that_is_no_record_is_told_in_a_sentence(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text("hello")
    assert load(page, path).count() == 0
    expect(page.locator("#replay-problem")).to_have_text("notes.jsonl: line 1: this is not JSON")


def test_whoever_closes_the_dialog_ends_what_it_plays(page: Page, toy_server: Served, saved: Path) -> None:
    load(page, saved)
    expect(page.locator("#replayed .state")).to_contain_text("playing")
    page.locator("#replay form button").click()
    expect(page.locator("#replay")).to_be_hidden()
    page.locator("#open-replay").click()
    expect(page.locator("#replayed li")).to_have_count(0)
