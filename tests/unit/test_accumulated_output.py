"""What a stream has said: its text anew, its context in the model's order, and taking back of both."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from realtime.stream.accumulated_output import Output
from realtime.text.detokenizer import TextStream
from tests.fakes.counted_work import counted
from tests.fakes.simulated_server import toy_tokenizer


def said(text: str, *stop: str) -> Output:
    """A byte a token."""
    output = Output(toy_tokenizer(), stop, 0)
    for byte in text.encode():
        output.add(byte)
    return output


def test_the_text_of_the_first_tokens_is_what_was_released_with_them() -> None:
    output = said("naïve")
    released = ["", "n", "na", "na", "naï", "naïv", "naïve"]
    assert [output.text(count, flushed=False) for count in range(7)] == released


def test_text_that_may_begin_a_stop_string_is_no_text_before_the_end() -> None:
    output = said("so EN", "END")
    assert output.text(5, flushed=False) == "so "
    assert output.flush() == "EN"
    assert output.text(5, flushed=True) == "so EN"


def test_a_stop_string_that_was_met_is_no_text_at_the_end_either() -> None:
    output = said("so END", "END")
    assert output.stopped == "END"
    output.flush()
    assert output.text(6, flushed=True) == "so "


def test_a_character_that_never_became_whole_is_text_at_the_end() -> None:
    output = said("")
    output.add(0xF0)
    assert output.text(1, flushed=False) == ""
    assert output.flush() == "\ufffd"
    assert output.text(1, flushed=True) == "\ufffd"


def test_context_has_injections_where_they_stand() -> None:
    output = said("")
    output.inject([1, 2])
    for token in b"ab":
        output.add(token)
    output.inject([3])
    output.inject([4])
    output.add(ord("c"))
    assert output.context() == [1, 2, *b"ab", 3, 4, *b"c"]
    output.inject([5])
    assert output.context() == [1, 2, *b"ab", 3, 4, *b"c", 5]
    assert output.injected() == 5
    assert [output.injected(before=index) for index in range(4)] == [2, 2, 4, 5]


@pytest.mark.parametrize(
    ("index", "context"),
    [
        (3, [1, *b"ab", 2, *b"c", 3]),
        (2, [1, *b"ab", 2]),
        (1, [1, *b"a"]),
        (0, [1]),
    ],
)
def test_rewinding_keeps_injections_up_to_there(index: int, context: list[int]) -> None:
    output = said("")
    output.inject([1])
    output.add(ord("a"))
    output.add(ord("b"))
    output.inject([2])
    output.add(ord("c"))
    output.inject([3])
    output.cut(index, ())
    assert output.context() == context
    assert len(output) == index


def test_rewinding_within_a_character_keeps_its_beginning() -> None:
    output = said("naïve")
    output.cut(3, ())
    assert output.text(3, flushed=False) == "na"
    assert output.text_length == 2
    assert output.add("ï".encode()[1]) == "ï"
    assert output.text(4, flushed=False) == "naï"


def test_rewinding_holds_back_what_may_begin_a_stop_string_now() -> None:
    output = said("one two")
    output.cut(5, ("one t!",))
    assert output.text_length == 0
    assert output.text(5, flushed=False) == ""
    assert output.add(ord("?")) == "one t?"
    assert output.text(6, flushed=False) == "one t?"


def test_what_was_said_is_not_said_again_at_the_end_since_a_stop_string_came_that_it_may_begin() -> None:
    output = said("so like")
    output.set_stop(("e t",), 0)
    whole, rest = output.flushed(("e t",))
    assert (whole.content(), rest) == ("so like", "")
    assert output.content() == "so like"


def test_behind_an_end_that_was_told_output_is_taken_back_to_what_was_told() -> None:
    """A character that was incomplete there stands as told; before it, it is incomplete again."""
    output = said("na")
    output.add(0xC3)
    output.flush_with_last()
    for byte in b"ve":
        output.add(byte)
    assert output.content() == "na\ufffdve"
    assert [output.forked("f", index, (), 0).content() for index in range(6)] == [
        "", "n", "na", "na\ufffd", "na\ufffdv", "na\ufffdve",
    ]  # fmt: skip
    output.cut(3, ())
    output.add(0xAF)
    assert output.content() == "na\ufffd\ufffd"
    output.cut(2, ())
    for byte in "ï".encode():
        output.add(byte)
    assert output.content() == "naï"


def test_a_stop_string_in_text_that_came_late_is_met_also_behind_a_rewind() -> None:
    stream = TextStream(toy_tokenizer(), ("<too",))
    stream.add_late("<tool")
    again = stream.rewound_text(0, 5, 0, 0, ("<too",), 0)
    assert (again.feed_text("x"), again.stopped) == ("", "<too")


def test_a_stop_string_does_not_begin_before_an_end_that_was_told() -> None:
    """Its beginning is said already: what came behind that was cut where it would have begun."""
    output = said("so E", "END")
    output.flush_with_last()
    output.add(ord("N"))
    output.add(ord("D"))
    assert (output.stopped, output.content()) == (None, "so END")


def test_what_is_said_anew_behind_a_rewinding_stands_in_text_and_context() -> None:
    output = said("abcd")
    output.cut(1, ())
    output.inject([9])
    output.add(ord("z"))
    assert output.text(2, flushed=False) == "az"
    assert output.context() == [*b"a", 9, *b"z"]


def test_taking_back_costs_what_is_taken_back_and_not_what_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    output = said("so it went on " * 100, "END")
    read: list[list[int]] = []
    length = TextStream._length

    def counting(stream: TextStream, tokens: Sequence[int]) -> int:
        read.append(list(tokens))
        return length(stream, tokens)

    monkeypatch.setattr(TextStream, "_length", counting)
    monkeypatch.delattr(TextStream, "feed")
    output.cut(len(output) - 3, ("END",))
    output.text(1000, flushed=False)
    assert read == [[*b"on "]], "what was released is not made anew"


def test_how_much_was_injected_is_known_without_a_look_at_all_that_was() -> None:
    lines = []
    for count in (10, 1000):
        output = said("a")
        for _ in range(count):
            output.inject([65, 66])
            output.add(97)
        with counted() as work:
            assert output.injected(before=count - 1) == 2 * (count - 1)
            output.cut(count - 1, ())
        assert (output.injected(), len(output.injections)) == (2 * (count - 1), count - 1)
        output.cut(count - 1, (), injected=2 * count - 3)
        assert (output.injected(), list(output.injections[-1][1])) == (2 * count - 3, [65])
        lines.append(work.lines)
    assert lines[0] == lines[1]
