"""What the terminal shows, without a terminal: keys, the view, its rows, its summary, and hostile text."""

from __future__ import annotations

import tracemalloc
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from prompt_toolkit.utils import get_cwidth

from midstream.cli.answer_view import AnswerView, status_line
from midstream.cli.key_bindings import (
    CHAT_HELP,
    CHAT_KEYS,
    EXIT_STATUS,
    RUN_KEYS,
    Intent,
    chat_help,
    fit_help,
)
from midstream.cli.sanitize import sanitize
from midstream.cli.summary import summary
from midstream.cli.wrap import runs, wrap
from midstream.protocol import Final, Timing, Usage
from midstream.spans import Call, Thought
from midstream.stream_core import Chunk
from midstream.tool_tasks import ToolOutcome


def view_of(*words: str) -> AnswerView:
    """A view of a token a word, one a tenth of a second."""
    view = AnswerView()
    for index, word in enumerate(words):
        view.add_chunk(Chunk(index, 1, word), now=index / 10)
    return view


def shown(view: AnswerView) -> str:
    return "".join(text for _, text in view.segments())


# -- keys ------------------------------------------------------------------------------------------


def test_every_intent_has_a_key_in_a_conversation() -> None:
    assert set(CHAT_KEYS.values()) == set(Intent)


def test_a_run_knows_skip_and_quit_only() -> None:
    assert set(RUN_KEYS.values()) == {Intent.STOP, *EXIT_STATUS}


def test_an_interrupt_leaves_as_the_shell_expects_it() -> None:
    assert (EXIT_STATUS[CHAT_KEYS["q"]], EXIT_STATUS[CHAT_KEYS["c-c"]]) == (0, 130)


def test_the_help_says_what_space_does_now() -> None:
    assert chat_help("writing") == CHAT_HELP
    assert chat_help("paused")[0] == "space resume"


def test_the_help_is_cut_by_whole_parts_and_never_wider_than_its_line() -> None:
    assert fit_help("left", ("a", "bc"), 20).endswith("a · bc ")
    assert fit_help("left", ("a", "bc"), 12).strip() == "a"
    assert fit_help("left", ("a", "bc"), 8) == ""
    assert all(len(" left" + fit_help("left", CHAT_HELP, width)) <= width for width in range(6, 120))


# -- the view --------------------------------------------------------------------------------------


def test_the_text_is_that_of_the_chunks() -> None:
    view = view_of("Once", " upon", " a time")
    assert (view.text, view.index, view.state) == ("Once upon a time", 3, "writing")


def test_a_chunk_before_the_end_takes_the_place_of_what_was_rewound() -> None:
    view = view_of("Once", " upon", " a", " time")
    view.add_chunk(Chunk(1, 2, " there was"), now=1.0)
    assert (view.text, view.index) == ("Once there was", 3)


def test_what_was_cut_is_gone_also_while_nothing_new_comes() -> None:
    view = view_of("Once", " upon", " a", " time")
    view.truncate(2)
    assert (view.text, view.index) == ("Once upon", 2)


def test_a_cut_at_the_end_or_behind_it_takes_nothing() -> None:
    view = view_of("Once", " upon")
    view.truncate(2)
    view.truncate(9)
    assert (view.text, view.index) == ("Once upon", 2)


def test_a_chunk_of_many_tokens_is_cut_at_any_of_them_and_takes_no_more_room_than_another() -> None:
    view = view_of("one", " two")
    tracemalloc.start()
    try:
        view.add_chunk(Chunk(2, 10_000_000, " many"), now=1)
        assert view.index == 10_000_002
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    for index, text in ((9_000_000, "one two many"), (3, "one two many"), (2, "one two"), (1, "one")):
        view.truncate(index)
        assert (view.index, view.text) == (index, text)


def test_text_that_comes_behind_the_last_token_stands() -> None:
    view = view_of("Once", "")
    view.add_chunk(Chunk(2, 0, "!"), now=1.0)
    assert (view.text, view.index) == ("Once!", 2)


def test_a_temperature_is_marked_where_it_took_effect_and_not_before_that_has_come() -> None:
    view = view_of("Once", " upon")
    view.mark_temperature(3, 0.8)
    assert shown(view) == "Once upon"
    view.add_chunk(Chunk(2, 1, " a"), now=1.0)
    view.add_chunk(Chunk(3, 1, " time"), now=1.1)
    assert ("note", "⟨0.8⟩") in view.segments()
    assert shown(view) == "Once upon a⟨0.8⟩ time"


def test_of_two_temperatures_at_one_token_the_last_is_marked() -> None:
    view = view_of("Once")
    view.mark_temperature(1, 0.8)
    view.mark_temperature(1, 0.9)
    assert shown(view) == "Once⟨0.9⟩"


def test_a_temperature_outlives_a_rewind_and_an_interjection_does_not() -> None:
    view = view_of("Once", " upon", " a")
    view.mark_temperature(3, 0.8)
    view.add_mark(3, "interjection", "Stop!")
    assert shown(view) == "Once upon a⟨0.8⟩\n\n▸ Stop!\n\n"
    view.truncate(1)
    assert shown(view) == "Once⟨0.8⟩"


def test_reasoning_and_calls_stand_where_they_were_written() -> None:
    view = view_of("", "", "So", ".", "", "")
    view.thoughts = [Thought(0, 2, "hm\n")]
    call = Call(call_id="c", name="weather", arguments='{"city":', index=4)
    view.calls = [call]
    assert view.segments() == [
        ("reasoning", "hm\n\n"),
        ("text", "So."),
        ("call", '\n⚙ weather {"city":'),
    ]
    call = replace(call, arguments='{"city":"Rome"}', end=6)
    view.calls, view.outcomes = [call], [ToolOutcome(call=call, content="warm\nthere")]
    assert shown(view).endswith('⚙ weather {"city":"Rome"}\n')
    view.outcomes = [
        ToolOutcome(call=call, content="warm\n" + 600 * "x", index=6),
        ToolOutcome(call=call, error="gone", index=6),
    ]
    assert shown(view).endswith(f"}}\n⚙ weather → warm {495 * 'x'}…\n⚙ weather → error: gone\n")


def test_a_snapshot_goes_on_with_what_is_shown_or_stands_in_its_place() -> None:
    view = view_of("Once", " upon")
    view.replace(4, "Once upon a time")
    assert (view.text, view.index) == ("Once upon a time", 4)
    view.truncate(2)
    assert view.text == "Once upon"
    view.replace(1, "Twice")
    assert (view.text, view.index) == ("Twice", 1)


def test_the_status_says_that_it_reasons() -> None:
    view = view_of("", "")
    view.thoughts = [Thought(0, 2, "hm")]
    assert "● reasoning" in status_line(view, now=0)
    view.add_chunk(Chunk(2, 2, "So"), now=1)
    assert "● writing" in status_line(view, now=1)


def test_an_interjection_at_the_index_rewound_to_stands() -> None:
    view = view_of("Once", " upon")
    view.add_mark(1, "interjection", "Stop!")
    view.truncate(1)
    assert shown(view) == "Once\n\n▸ Stop!\n\n"


def test_the_temperature_stays_in_its_range() -> None:
    view = AnswerView()
    view.temperature = 0.1
    assert [view.change_temperature(-0.1), view.change_temperature(-0.1)] == [0.0, 0.0]
    view.temperature = 1.95
    assert [view.change_temperature(0.1), view.change_temperature(0.1)] == [2.0, 2.0]


def test_a_rewind_goes_to_the_beginning_of_the_last_sentence() -> None:
    assert view_of("A.", " It", " was", " so", " dark").rewind_target() == 1


def test_a_rewind_right_behind_a_sentence_takes_that_sentence() -> None:
    assert view_of("A.", " It", " was.").rewind_target() == 1
    assert view_of("A.", " It", " was.", " So").rewind_target() == 1


def test_a_rewind_of_the_first_sentence_goes_to_the_beginning() -> None:
    assert view_of("It", " was", " so").rewind_target() == 0
    assert view_of().rewind_target() == 0


def test_a_rewind_without_an_end_of_a_sentence_nearby_takes_a_few_tokens() -> None:
    assert view_of(*[" word"] * 100).rewind_target() == 90


@given(st.lists(st.sampled_from([" word", ".", "", "!\n", " a."]), max_size=80))
def test_rewinding_again_and_again_comes_to_the_beginning(words: list[str]) -> None:
    view = view_of(*words)
    while view.index:
        target = view.rewind_target()
        assert target < view.index
        view.truncate(target)
    assert view.text == ""


# -- the status line -------------------------------------------------------------------------------


def test_the_status_says_tokens_rate_and_temperature() -> None:
    view = view_of(*[" word"] * 11)
    view.temperature, view.temperature_since = 0.7, 0
    assert status_line(view, now=1.0) == "● writing  11 tokens  10.0 tok/s  temperature 0.7"
    view.change_temperature(0.1)
    assert status_line(view, now=1.0).endswith("temperature 0.8 …")
    view.mark_temperature(11, 0.8)
    assert status_line(view, now=1.0).endswith("temperature 0.8 since token 11")


def test_the_rate_is_that_of_the_last_seconds() -> None:
    view = view_of(*[" word"] * 11)
    assert view.rate(now=60.0) is None


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("client", "‖ paused  "),
        ("memory", "‖ paused (memory)  "),
        ("\u202eyromem\x1b[2J", "‖ paused (<202E>yromem␛[2J)  "),
    ],
)
def test_a_pause_says_whose_it_is(reason: str, words: str) -> None:
    view = view_of("Once")
    view.set_paused(reason)
    assert status_line(view, now=0.0).startswith(words)
    view.set_paused(None)
    assert view.state == "writing"


def test_a_lost_connection_can_be_seen_until_it_is_back_or_the_answer_ended() -> None:
    view = view_of(*["x"] * 3)
    view.disconnected = True
    assert status_line(view, now=1.0) == "↻ connection lost, coming back  3 tokens"
    view.ended = True
    assert status_line(view, now=1.0).startswith("■ ended")


def test_before_the_first_token_and_after_the_last() -> None:
    view = AnswerView()
    assert status_line(view, now=0.0).startswith("… reading the prompt")
    view.ended = True
    assert status_line(view, now=0.0).startswith("■ ended")


def test_a_refusal_takes_the_place_of_the_status() -> None:
    view = view_of("Once")
    view.error = "it does not fit"
    assert status_line(view, now=0.0) == "! it does not fit"


def final(**fields: object) -> Final:
    given = {"finish_reason": "stop", "stop_reason": "eos", "ttft": 120.0, "rate": 18.25} | fields
    return Final(
        request_id="a",
        index=42,
        finish_reason=given["finish_reason"],  # type: ignore[arg-type]
        stop_reason=given["stop_reason"],  # type: ignore[arg-type]
        usage=Usage(
            prompt_tokens=9, completion_tokens=42, total_tokens=51, cached_tokens=0, injected_tokens=0,
            discarded_tokens=0,
        ),
        timing=Timing(
            queue_ms=1.0,
            ttft_ms=given["ttft"],  # type: ignore[arg-type]
            total_ms=2300.0,
            paused_ms=0.0,
            tokens_per_s=given["rate"],  # type: ignore[arg-type]
        ),
    )  # fmt: skip


def test_the_summary_says_what_there_is_to_say() -> None:
    assert summary(final()) == "42 tokens · first after 0.12 s · total 2.30 s · 18.2 tok/s · stop (eos)"
    cancelled = final(finish_reason="cancelled", stop_reason=None, ttft=None, rate=None)
    assert summary(cancelled) == "42 tokens · total 2.30 s · cancelled"


def test_the_summary_quotes_a_stop_string_and_disarms_it() -> None:
    assert summary(final(stop_reason="\x1bEND")).endswith("stop ('␛END')")


# -- rows ------------------------------------------------------------------------------------------


def broken(text: str, width: int) -> list[str]:
    return ["".join(part for _, part in runs(row)) for row in wrap([("text", text)], width, get_cwidth)]


def test_rows_break_at_spaces() -> None:
    assert broken("once upon a time", 9) == ["once upon", "a time"]
    assert broken("once upon\na time", 40) == ["once upon", "a time"]


def test_a_word_longer_than_a_row_is_broken() -> None:
    assert broken("abcdefgh ij", 4) == ["abcd", "efgh", "ij"]


def test_wide_letters_and_tabs_take_their_room() -> None:
    assert broken("日本語", 4) == ["日本", "語"]
    assert broken("\tab", 5) == ["    a", "b"]


def test_styles_stay_with_their_letters() -> None:
    assert [runs(row) for row in wrap([("text", "ab "), ("note", "cd")], 4, get_cwidth)] == [
        [("text", "ab")],
        [("note", "cd")],
    ]


@example(" \t\taa日", "", 11)  # what is left behind the break may still be too long
@given(st.text(alphabet="ab 日\t\n"), st.text(alphabet="ab 日\t\n"), st.integers(4, 12))
def test_rows_lose_nothing_fit_and_change_only_at_the_end(text: str, more: str, width: int) -> None:
    before = wrap([("text", text)], width, get_cwidth)
    assert "".join(letter for row in before for _, letter in row) == text
    for row in before:
        assert sum(get_cwidth(part) for _, part in runs(row)) <= width
    after = wrap([("text", text + more)], width, get_cwidth)
    assert after[: len(before) - 1] == before[:-1]


# -- hostile text ----------------------------------------------------------------------------------


def test_escape_sequences_are_seen_and_not_obeyed() -> None:
    assert sanitize("\x1b[2J\x1b]0;owned\x07\r\x08\x7f\x9b31m") == "␛[2J␛]0;owned␇␍␈␡<009B>31m"


def test_bidirectional_controls_are_seen_and_not_obeyed() -> None:
    assert sanitize("a\u202eb\u2066c\u200fd\u061ce") == "a<202E>b<2066>c<200F>d<061C>e"


def test_plain_text_stays_as_it_is() -> None:
    assert sanitize("Grüße, 日本語 🙂\n\tنعم") == "Grüße, 日本語 🙂\n\tنعم"


@given(st.text(alphabet=st.characters(codec=None)))
def test_nothing_that_a_terminal_obeys_is_left(text: str) -> None:
    left = {letter for letter in sanitize(text) if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")}
    assert left <= {"\n", "\t"}
    bidi = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert not {letter for letter in sanitize(text) if unicodedata.bidirectional(letter) in bidi}


def test_the_view_shows_hostile_text_disarmed() -> None:
    view = view_of("a\x1b[31m")
    view.add_mark(1, "interjection", "b\x1b[0m")
    assert shown(view) == "a␛[31m\n\n▸ b␛[0m\n\n"
