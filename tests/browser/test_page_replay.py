"""Records on the page: an answer that was steered is saved, and the file is replayed here and elsewhere."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

import midstream
from midstream.cli.replay import main as replay
from midstream.recording import read_records
from tests.browser.page_user import ask, set_slider, state, written_so_far
from tests.server.server_process import Served


def load(page: Page, path: Path) -> Locator:
    """What the dialog says of it."""
    if not page.locator("#replay").is_visible():
        page.locator("#open-replay").click()
    page.locator("#record").set_input_files(path)
    return page.locator("#replayed li")


def replayed_by_command(server: Served, path: Path) -> int:
    """In a thread of its own: while Playwright is there, this one can run no event loop."""
    with ThreadPoolExecutor() as pool:
        return pool.submit(replay, ["--url", server.http, str(path)]).result()


def test_an_answer_that_was_steered_is_saved_and_replayed(
    page: Page, toy_server: Served, tmp_path: Path
) -> None:
    answer = ask(page)
    set_slider(page, "temperature", "1.3")
    expect(answer.locator(".mark.adjust")).to_be_visible()
    answer.locator(".interject").click()
    answer.locator(".interjection input").fill("But \x1b[31mno")
    answer.locator(".interjection input").press("Enter")
    expect(answer.locator(".mark.inject")).to_be_visible()
    written_so_far(answer, 20)
    answer.locator(".word").nth(5).click()
    expect(answer.locator(".mark.rewind")).to_be_visible()
    written_so_far(answer, 10)
    answer.locator(".stop").click()
    state(answer, "stopped")
    with page.expect_download() as download:
        answer.locator(".save").click()
    assert download.value.suggested_filename == "midstream-record.jsonl"
    path = tmp_path / "record.jsonl"
    download.value.save_as(path)

    (record,) = read_records(path)
    kinds = {type(line).__name__ for line in record.lines}
    assert kinds >= {"Tokens", "Adjust", "Inject", "Rewind", "Pause", "Resume", "Final"}
    assert replayed_by_command(toy_server, path) == 0
    replayed = load(page, path)
    expect(replayed.locator(".state")).to_contain_text("equal: ")
    expect(replayed.locator(".title")).to_have_text("Say something long")
    expect(replayed).to_contain_text("The fingerprints are equal, fp_")


@pytest.fixture
def recorded(toy_server: Served, tmp_path: Path) -> Path:
    """A record that another client wrote."""
    path = tmp_path / "record.jsonl"
    with midstream.sync.connect(toy_server.http) as client, client.record(path):
        client.complete(prompt="Once upon a time", max_tokens=60, ignore_eos=True)
    return path


def test_the_first_difference_is_shown_with_both_log_probabilities(page: Page, recorded: Path) -> None:
    lines = [json.loads(line) for line in recorded.read_text().splitlines()]
    lines[0]["fingerprint"] = "fp_other"
    forged = next(line for line in lines if line["type"] == "tokens" and line["index"] == 5)
    forged["tokens"][0] ^= 1
    recorded.write_text("\n".join(map(json.dumps, lines)))
    replayed = load(page, recorded)
    expect(replayed.locator(".state")).to_have_text("differs at token 5")
    for which in ("Recorded", "Here"):
        expect(replayed).to_contain_text(re.compile(rf"{which}: \d+ .*?, log probability (-\d|0)\.\d+"))
    expect(replayed).to_contain_text("The fingerprints differ: recorded fp_other, here fp_")


def test_a_fork_is_not_played_and_what_stands_beside_it_is(page: Page, recorded: Path) -> None:
    start, *lines = map(json.loads, recorded.read_text().splitlines())
    fork = {name: value for name, value in start.items() if name != "prompt"} | {
        "fork": {"request_id": "b", "at": 3}
    }
    others = [line | {"stream": 2} for line in (start, *lines)]
    recorded.write_text("\n".join(map(json.dumps, [fork, *others])))
    replayed = load(page, recorded)
    expect(replayed.locator(".title")).to_have_text(["a fork of b", "Once upon a time"])
    expect(replayed.locator(".state").first).to_have_text(
        "not replayed: it is a fork, which cannot be played without the stream that it forks"
    )
    expect(replayed.locator(".state").last).to_contain_text("equal: ")


def test_whoever_closes_the_dialog_ends_what_it_plays(page: Page, recorded: Path) -> None:
    load(page, recorded)
    expect(page.locator("#replayed .state")).to_contain_text("playing")
    page.locator("#replay form button").click()
    expect(page.locator("#replay")).to_be_hidden()
    page.locator("#open-replay").click()
    expect(page.locator("#replayed li")).to_have_count(0)


def test_a_file_that_is_no_record_is_told_in_a_sentence(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text("hello")
    assert load(page, path).count() == 0
    expect(page.locator("#replay-problem")).to_have_text("notes.jsonl: line 1: this is not JSON")
