"""Structure on the page: reasoning that is folded, calls that fill in and are answered by hand, a schema's
box."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

import pytest
from playwright.sync_api import Page, expect

from tests.browser.page_user import open_panel, state, words_of
from tests.server.server_process import Served

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = json.dumps([{"name": "weather", "parameters": PARAMETERS}])
FIRST, SECOND = {"city": "Rome </tool_call> }", "days": 3}, {"city": "Bonn"}


@pytest.fixture(scope="module")
def scripted() -> Iterator[Served]:
    """The model says what it is told to, slowly enough to be seen."""
    server = Served("--toy-step-ms", "20", "--drafts", "off", scripted=True)
    yield server
    server.end()


@pytest.fixture
def page(open_page: Callable[[], Page], scripted: Served) -> Page:
    page = open_page()
    page.goto(scripted.http)
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    open_panel(page)
    return page


def fill(page: Page, box: str, text: str) -> None:
    fold = page.locator(".box", has=page.locator(f"[name={box}]"))
    if fold.get_attribute("open") is None:
        fold.locator("summary").click()
    page.locator(f"[name={box}]").fill(text)


def say(page: Page, text: str) -> None:
    page.locator("#question").fill(text)
    page.locator("#ask").click()


def spelt(*calls: Mapping[str, object]) -> str:
    tags = (json.dumps({"name": "weather", "arguments": call}, ensure_ascii=False) for call in calls)
    return "".join(f"<tool_call>\n{tag}\n</tool_call>" for tag in tags)


def test_calls_fill_in_and_are_answered_by_hand(page: Page) -> None:
    page.get_by_role("link", name="Workbench").click()
    fill(page, "tools", TOOLS)
    say(page, f"Say ⟦I look.{spelt(FIRST, SECOND)}⏭Warm in both.⟧")
    answer = page.locator(".answer").first
    first = answer.locator(".call").first
    expect(first).to_have_attribute("aria-busy", "true")
    assert not first.locator("pre").first.inner_text().endswith("}")
    expect(first).to_have_attribute("aria-busy", "false")
    state(answer, "waits for tools")
    given = answer.locator(".call pre:not(.result)").all_inner_texts()
    assert [json.loads(one) for one in given] == [FIRST, SECOND]
    assert words_of(answer) == ["I", "look."]
    for degrees, call in zip(("30 degrees", "20"), answer.locator(".call").all(), strict=True):
        call.get_by_label("What weather returned").fill(degrees)
        call.get_by_role("button", name="Return this").click()
        expect(call.locator(".result")).to_have_text(degrees)
    state(answer, "finished")
    assert words_of(answer) == ["I", "look.", "Warm", "in", "both."]
    page.reload()
    expect(page.locator(".call .result").last).to_have_text("20")
    page.get_by_role("link", name="Conversation").click()
    say(page, "And ⟦so on.⟧")
    expect(page.locator(".answer").last.locator(".prose")).to_have_text("so on.")


def test_an_answer_that_fits_the_schema(page: Page) -> None:
    fill(page, "schema", '{"enum": ["yes"]}')
    say(page, "Well?")
    expect(page.locator(".prose")).to_have_text('"yes"')


@pytest.mark.parametrize(
    ("box", "text", "words"),
    [
        ("schema", '{"type": ', "This is not JSON: "),
        ("schema", "3", "A JSON schema is an object."),
        ("tools", '{"name": "a"}', "Tools are a list of objects, each with a name."),
    ],
)
def test_what_cannot_be_read_is_said_and_nothing_is_asked(
    page: Page, box: str, text: str, words: str
) -> None:
    page.get_by_role("link", name="Workbench").click()
    fill(page, box, text)
    expect(page.locator(f"#{box}-problem")).to_contain_text(words)
    page.locator(".box", has=page.locator(f"[name={box}]")).locator("summary").click()
    say(page, "Well?")
    expect(page.locator(f"[name={box}]")).to_be_focused()
    expect(page.locator(".turn")).to_have_count(0)
    fill(page, box, "")
    expect(page.locator(f"#{box}-problem")).to_be_hidden()


def test_reasoning_is_folded_and_says_that_it_goes_on(page: Page) -> None:
    page.evaluate(
        """async () => {
          const { ReasoningFold } = await import("/reasoning-fold.js");
          globalThis.fold = new ReasoningFold();
          document.getElementById("turns").append(fold.element);
          fold.draw("Hm \\u202eso", true);
        }"""
    )
    fold = page.locator("details.reasoning")
    expect(fold.locator("summary")).to_have_text("Reasoning… · 2 words")
    expect(fold.locator("bdi")).to_have_text("")
    fold.locator("summary").click()
    expect(fold.locator("bdi")).to_have_text("Hm ⟨RLO⟩so")
    page.evaluate('fold.draw("Hm so it is", false)')
    expect(fold.locator("summary")).to_have_text("Reasoning · 4 words")
    expect(fold.locator("bdi")).to_have_text("Hm so it is")
    page.evaluate('fold.draw("Hm so it isn\u202e", true)')
    page.evaluate('fold.draw("Hm so it isn\u202e\'t so", true)')
    expect(fold.locator("summary")).to_have_text("Reasoning… · 5 words")
    expect(fold.locator("bdi")).to_have_text("Hm so it isn⟨RLO⟩'t so")
    page.evaluate('fold.draw("", false)')
    expect(fold).to_be_hidden()


def test_a_card_of_which_nothing_is_new_is_not_looked_at(page: Page) -> None:
    looked = page.evaluate(
        """async () => {
          const { CallCards } = await import("/call-cards.js");
          const cards = new CallCards({});
          let looked = 0;
          const call = { call_id: "a", name: "sum", index: 0, end: 5, approval: true };
          Object.defineProperty(call, "arguments", { get: () => (looked++, "{}"), enumerable: true });
          const entry = { run: 0, index: 0, call, state: "asking", told: null };
          const counts = [];
          for (const change of [() => {}, () => {}, () => delete call.approval]) {
            looked = 0;
            change();
            cards.draw([{ ...entry }], "live");
            counts.push(looked);
          }
          return counts;
        }"""
    )
    assert (looked[0] > 0, looked[1], looked[2] > 0) == (True, 0, True)


PAUSES = """async (events) => {
    const { Answer } = await import("/answer-state.js");
    let tell;
    const stream = { calls: [], reasoning: "", index: 0, consumed: 0, next: () => new Promise(() => {}) };
    const run = async (agent, messages, { onevent }) => (tell = onevent, { stream, outcomes: [] });
    const answer = new Answer(() => ({ run }), [], "");
    answer.write({ params: {}, window: 1, pace: 0, tools: [], approvals: [] });
    await new Promise((resolve) => setTimeout(resolve));
    return events.map((event) => (tell(event), [answer.state, answer.awaitsTools]));
}"""


def test_an_answer_waits_for_tools_though_a_snapshot_or_a_restart_alone_tells_of_that(page: Page) -> None:
    told = [
        {"type": "snapshot", "index": 3, "paused": "tool_call"},
        {"type": "snapshot", "index": 5},
        {"type": "restarted", "index": 5, "begun": {"paused": "tool_call"}},
        {"type": "restarted", "index": 5, "begun": {}},
        {"type": "paused", "index": 5, "reason": "client"},
    ]
    waits, writes = ["paused", True], ["writing", False]
    assert page.evaluate(PAUSES, told) == [waits, writes, waits, writes, ["paused", False]]
