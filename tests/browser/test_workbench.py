"""The workbench of the page: its tools run for a model that calls for sure, and a call can be stopped while
it is written, changed, approved, refused, answered by hand, taken back and forked; and all of it replayed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.page_user import open_panel, state, words_of
from tests.server.server_process import Served

LONG = " + ".join(["1"] * 200)  # a call that takes seconds to write
BY_HAND = json.dumps([{"name": "weather", "parameters": {"type": "object", "properties": {}}}])


@pytest.fixture(scope="module")
def scripted() -> Iterator[Served]:
    """The model says what it is told to, slowly enough to be seen."""
    server = Served("--toy-step-ms", "10", scripted=True)
    yield server
    server.end()


@pytest.fixture
def page(open_page: Callable[[], Page], scripted: Served) -> Page:
    page = open_page()
    page.goto(f"{scripted.http}/#workbench")
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    open_panel(page)
    page.locator("[name=max_tokens]").fill("5000")
    return page


def spelt(name: str, **given: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': given})}\n</tool_call>"


def ask(page: Page, *turns: str) -> Locator:
    """The answer of a model that says this, and the next behind each injection."""
    page.locator("#question").fill(f"Say ⟦{'⏭'.join(turns)}⟧")
    page.locator("#ask").click()
    return page.locator(".answer:visible")


def call(answer: Locator, number: int, state: str) -> Locator:
    card = answer.locator(".call").nth(number)
    expect(card).to_have_attribute("data-state", state)
    return card


def press(place: Page | Locator, name: str) -> None:
    place.get_by_role("button", name=name, exact=True).click()


def offer_by_hand(page: Page) -> None:
    page.locator("#bench .box > summary").click()
    page.locator("[name=tools]").fill(BY_HAND)


def count_of_quinces(page: Page) -> Locator:
    return page.get_by_label("count, row 3")


def test_a_run_is_stopped_changed_approved_answered_taken_back_forked_and_replayed(
    page: Page, tmp_path: Path
) -> None:
    offer_by_hand(page)
    answer = ask(
        page,
        f"Let me see.{spelt('calculate', expression=LONG)}",
        "}\n</tool_call>",
        spelt("write_cell", row=3, column="count", value="25"),
        spelt("weather"),
        "All done.",
    )

    # Stopped in the midst of its arguments, and changed.
    sums = call(answer, 0, "writing")
    expect(sums.locator("pre").first).to_have_text(re.compile(r"1 \+ 1"))
    press(sums, "Stop here")
    expect(sums.locator(".progress")).to_have_text("stopped here")
    assert not sums.locator("pre").first.inner_text().endswith("}")
    press(sums, "Change")
    sums.get_by_label("Arguments of calculate").fill('{"expression": "12 * (3 + 4)"}')
    press(sums, "Use these")
    call(answer, 0, "answered")
    expect(sums.locator(".result")).to_have_text("84")
    expect(page.locator(".tape")).to_have_text("12 * (3 + 4)= 84")

    # It asks first, and is approved; the model calls what nobody here can run.
    asks = call(answer, 1, "asking")
    assert count_of_quinces(page).input_value() == "15"
    press(asks, "Approve")
    call(answer, 1, "answered")
    expect(count_of_quinces(page)).to_have_value("25")
    call(answer, 2, "waiting")

    # Taken back: it is written again, and this time refused.
    press(asks, "Back to before it")
    asks = call(answer, 1, "asking")
    press(asks, "Refuse")
    asks.get_by_label("Why write_cell may not run").fill("not today")
    press(asks.locator(".editor"), "Refuse")
    call(answer, 1, "failed")
    expect(asks.locator(".result")).to_have_text("not today")
    by_hand = call(answer, 2, "waiting")
    by_hand.get_by_label("What weather returned").fill("mild")
    press(by_hand, "Return this")
    state(answer, "finished")
    assert words_of(answer) == ["Let", "me", "see.", "All", "done."]

    # A fork before it was refused goes another way, and the tree leads back.
    count_of_quinces(page).fill("15")
    press(asks, "Fork before it")
    expect(answer).to_have_attribute("aria-label", "Answer 2")
    asks = call(answer, 1, "asking")
    expect(call(answer, 0, "answered").locator(".result")).to_have_text("84")
    press(asks, "Approve")
    expect(count_of_quinces(page)).to_have_value("25")
    by_hand = call(answer, 2, "waiting")
    by_hand.get_by_label("What weather returned").fill("cold")
    press(by_hand, "Return this")
    state(answer, "finished")
    expect(answer.locator(".result").nth(1)).to_contain_text('"count": "25"')
    branches = page.get_by_role("treeitem")
    expect(branches).to_have_count(2)
    expect(branches.last).to_have_attribute("aria-selected", "true")
    branches.last.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    expect(answer.locator(".result").nth(1)).to_have_text("not today")

    # Either is saved whole, and replayed.
    for branch in (0, 1):
        branches.nth(branch).locator("> .line").click()
        with page.expect_download() as download:
            answer.locator(".save").click()
        path = tmp_path / f"{branch}.jsonl"
        download.value.save_as(path)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert {line["type"] for line in lines} >= {"amend", "tool_result", "waits", "tokens", "final"}
        press(page, "Replay")
        page.locator("#record").set_input_files(path)
        expect(page.locator("#replayed .state")).to_contain_text("equal: ")
        page.locator("#replay form button").click()


def test_a_running_tool_may_be_answered_by_hand_and_a_failure_is_told(page: Page) -> None:
    answer = ask(page, spelt("calculate", expression="1 +") + spelt("clock", zone="Nowhere"), "Well.")
    expect(call(answer, 0, "failed").locator(".result")).to_have_text("something is missing at the end")
    expect(call(answer, 1, "failed").locator(".result")).to_contain_text("Nowhere")
    state(answer, "finished")


def test_what_waits_to_be_answered_by_hand_can_be_answered_whatever_is_left(page: Page) -> None:
    offer_by_hand(page)
    by_hand = call(ask(page, spelt("weather"), "Well."), 0, "waiting")
    returned = by_hand.get_by_label("What weather returned")
    returned.fill("mild")
    returned.press("Escape")
    expect(returned).to_have_value("mild")
    press(by_hand, "Change")
    by_hand.get_by_label("Arguments of weather").press("Escape")
    expect(returned).to_be_visible()
    press(by_hand, "Refuse")
    press(by_hand, "Leave")
    returned.fill("mild")
    press(by_hand, "Return this")
    expect(call(page.locator(".answer"), 0, "answered").locator(".result")).to_have_text("mild")
    expect(by_hand.locator(".editor")).to_be_hidden()
    state(page.locator(".answer"), "finished")


def test_tools_read_what_the_reader_edits(page: Page) -> None:
    page.get_by_label("price, row 1").fill("0.50")
    page.get_by_label("A text to search").fill("The river was quiet.\nThe mill stood still.\nNo wind.")
    answer = ask(page, spelt("read_table") + spelt("search_text", words="quiet river mill"), "Well.")
    rows = json.loads(call(answer, 0, "answered").locator(".result").inner_text())
    assert rows[0] == {"item": "apples", "price": "0.50", "count": "120"}
    found = json.loads(call(answer, 1, "answered").locator(".result").inner_text())
    assert found == ["The river was quiet.", "The mill stood still."]


def test_a_guard_is_a_chip_that_lights_up_when_it_acts(page: Page) -> None:
    page.get_by_label("What the guard forbids").select_option("says")
    page.get_by_label("Which").fill("secret")
    page.get_by_label("What the guard does").select_option("finish")
    press(page, "Add")
    answer = ask(page, "The secret is out.")
    chip = page.locator(".guard-chip")
    expect(chip).to_have_class(re.compile("lit"))
    expect(chip.locator("b")).to_have_text("\u00d71")
    state(answer, "stopped by a guard")
    expect(answer.locator(".mark.guard")).to_contain_text("never says secret")
    press(page, "Take away the guard: never says secret")
    answer = ask(page, "The secret is out.").last
    state(answer, "finished")


def test_the_tree_of_branches_reads_no_more_of_a_long_answer_than_it_shows(page: Page) -> None:
    """It is drawn anew with the tokens of each answer, however many come in a frame."""
    shown = page.evaluate(
        """async () => {
            const { BranchTree } = await import("/branch-tree.js");
            let read = 0;
            const word = (index) => ({ run: 0, text: ` w${index}`, get index() { read++; return index; } });
            const words = new Proxy(Array.from({ length: 10000 }, (_, index) => word(index)), {
                get(words, name) { read++; return Reflect.get(words, name); },
            });
            const whole = { label: "Whole", origin: null, transcript: { words } };
            const origin = { answer: whole, at: { run: 0, index: 7000 } };
            const fork = { label: "Fork", origin, transcript: { words } };
            const cards = [whole, fork].map((answer) => ({ answer }));
            const tree = document.createElement("ul");
            const branches = new BranchTree(tree, () => {});
            const turns = [{ question: "Why?", cards, chosen: cards[0] }];
            for (let token = 0; token < 100; token++) branches.draw(turns);
            await new Promise((drawn) => requestAnimationFrame(drawn));
            return { said: [...tree.querySelectorAll("bdi")].map((line) => line.textContent), read };
        }"""
    )
    assert shown["said"] == ["w0 w1 w2 w3 w4 w5", "w7000 w7001 w7002 w7003 w7004 w7005"]
    assert shown["read"] < 200


ARITHMETIC = {
    "12 * (3 + 4.5)": 90,
    "-2 ^ 2": -4,
    "2 ^ 3 ^ 2": 512,
    "0.1 + 0.2": 0.3,
    "max(1, sqrt(16)) % 3": 1,
    "6 \u00f7 4 \u00d7 2 \u2212 1": 2,
    "1 / 0": "1 / 0 has no value",
    "constructor": '"constructor" is not known',
    "alert(1)": '"alert" is not known',
    "1; 2": '"; 2" is no arithmetic',
    "(1": '")" is missing',
    "1 2": '"2" stands where nothing is due',
    "(" * 500: "it is nested too deep",
}


def test_arithmetic(page: Page) -> None:
    said = page.evaluate(
        """async (expressions) => {
            const { evaluate } = await import("/bench/arithmetic.js");
            const tried = (expression) => {
                try { return evaluate(expression); } catch (error) { return error.message; }
            };
            return Object.fromEntries(expressions.map((expression) => [expression, tried(expression)]));
        }""",
        list(ARITHMETIC),
    )
    assert said == ARITHMETIC
