"""The page's transcript of an answer: words, cuts, marks, and what a model is given to go on from."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

SETUP = """async (script) => {
    const { Transcript } = await import("/answer-transcript.js");
    const transcript = new Transcript();
    const ids = (count) => [...Array(count).keys()];
    const say = (index, text, count = 1) =>
        transcript.add({ run: 0, index, count, text, tokens: ids(count) });
    say(0, "One"); say(1, " two"); say(2, " thr"); say(3, "ee"); say(4, " four five", 2);
    for (const [name, ...given] of script) transcript[name](...given);
    return {
        text: transcript.text,
        words: transcript.words.map(({ index, text }) => [index, text]),
        marks: transcript.marks.map(({ index, kind, params }) => [index, kind, params?.temperature ?? null]),
        order: [...transcript.items()].map((item) => item.kind ?? item.text),
        parts: transcript.parts().map((part) => part.messages ? part.messages[0].content : part.text),
        roles: transcript.messages().map(({ role }) => role),
    };
}"""

COOLER = {"run": 0, "index": 3, "kind": "adjust", "params": {"temperature": 0.5}}
WARMER = {"run": 0, "index": 4, "kind": "adjust", "params": {"temperature": 1.5}}
PUT_IN = {"run": 0, "index": 2, "kind": "inject", "text": " but"}
SAID = {
    "run": 0,
    "index": 2,
    "kind": "inject",
    "messages": [{"role": "user", "content": "Why?"}],
}


def written(page: Page, *script: list[Any]) -> dict[str, Any]:
    result: dict[str, Any] = page.evaluate(SETUP, list(script))
    return result


def test_tokens_become_words_and_a_word_begins_at_its_first_token(page: Page) -> None:
    result = written(page)
    assert result["words"] == [[0, "One"], [1, " two"], [2, " three"], [4, " four"], [4, " five"]]


@pytest.mark.parametrize(
    ("index", "length", "text"),
    [(4, 13, "One two three"), (3, 11, "One two thr"), (5, 18, "One two three four"), (0, 0, "")],
)
def test_a_cut_leaves_what_the_server_says_stands(page: Page, index: int, length: int, text: str) -> None:
    assert written(page, ["cut", {"run": 0, "index": index}, length])["text"] == text


def test_parameters_outlive_a_cut_and_injections_behind_it_do_not(page: Page) -> None:
    script = [["mark", mark] for mark in (COOLER, WARMER, PUT_IN)]
    result = written(page, *script, ["cut", {"run": 0, "index": 1}, 3])
    assert result["marks"] == [[1, "adjust", 1.5]]


def test_an_injection_at_the_cut_stays(page: Page) -> None:
    result = written(page, ["mark", PUT_IN], ["cut", {"run": 0, "index": 2}, 7])
    assert result["order"] == ["One", " two", "inject"]


def test_a_mark_stands_before_the_first_word_that_it_had_to_do_with(page: Page) -> None:
    result = written(page, ["mark", WARMER], ["mark", PUT_IN])
    assert result["order"] == ["One", " two", "inject", " three", "adjust", " four", " five"]


def test_what_was_put_in_is_given_back_to_the_model_in_its_place(page: Page) -> None:
    assert written(page, ["mark", PUT_IN])["parts"] == ["One two", " but", " three four five"]


def test_a_message_put_in_is_a_turn_of_its_own(page: Page) -> None:
    result = written(page, ["mark", SAID])
    assert result["parts"] == ["One two", "Why?", " three four five"]
    assert result["roles"] == ["assistant", "user", "assistant"]


WALK = """async () => {
    const { Transcript } = await import("/answer-transcript.js");
    const { AnswerText } = await import("/answer-text.js");
    const transcript = new Transcript();
    const text = new AnswerText(transcript, () => document.createElement("b"), () => {}, () => {});
    const say = (index, text) => transcript.add({ run: 0, index, count: 1, text });
    for (let index = 0; index < 100; index++) say(index, ` ${index}`);
    transcript.mark({ run: 0, index: 50, kind: "adjust", params: { temperature: 0.5 } });
    text.draw();
    let walked = 0;
    for (const word of transcript.words.slice(0, 99)) {
        const { text } = word;
        Object.defineProperty(word, "text", { get: () => (walked++, text) });
    }
    const counts = [];
    for (const act of [
        () => say(100, "th"), () => say(101, " more"), () => {},
        () => transcript.mark({ run: 0, index: 102, kind: "inject", text: " and" }),
        () => transcript.mark({ run: 0, index: 50, kind: "adjust", params: { temperature: 0.7 } }),
    ]) {
        walked = 0;
        act();
        text.draw();
        counts.push(walked);
    }
    return { counts, shown: text.element.textContent };
}"""


def test_to_draw_what_is_new_looks_at_nothing_else(page: Page) -> None:
    """However long the answer is: all of it would be a frame's work, again and again."""
    drawn = page.evaluate(WALK)
    tokens = "".join(f" {index}" for index in range(50, 100))
    assert drawn["counts"][:4] == [0, 0, 0, 0]
    assert drawn["counts"][4] > 0
    assert drawn["shown"].endswith(f"temperature 0.7{tokens}th more and")
