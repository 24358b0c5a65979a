"""The report of a replay: what a person reads of it, line by line."""

from __future__ import annotations

from typing import Any

from midstream.cli.replay_report import report, title
from midstream.protocol import Params
from midstream.record_format import Record, Start
from midstream.replay import Difference, OutputToken, Replay


def replay(difference: Difference | None = None, **fields: Any) -> Replay:
    same: dict[str, Any] = {
        "tokens": 17,
        "recorded_fingerprints": ["fp_1"],
        "replayed_fingerprints": ["fp_1"],
        "recorded_prompt_tokens": 5,
        "replayed_prompt_tokens": 5,
    }
    return Replay(difference=difference, **same | fields)


OTHER = Difference(
    index=17,
    recorded=OutputToken(284, " \x1b[31mthe", -0.69312),
    replayed=OutputToken(253, " a", -0.69321),
    recorded_logprob_here=-0.69333,
)


def test_an_equal_one_takes_two_lines() -> None:
    assert report(replay()) == ["equal: 17 tokens", "the fingerprints are equal, fp_1"]
    assert report(replay(tokens=1))[0] == "equal: 1 token"


def test_a_difference_is_shown_with_both_log_probabilities_and_controls_it_no_terminal() -> None:
    assert report(replay(OTHER, replayed_fingerprints=["fp_2"])) == [
        "differs at token 17, 17 tokens having been equal",
        "recorded: 284 ' ␛[31mthe', log probability -0.6931",
        "here:     253 ' a', log probability -0.6932; the recorded one has -0.6933 here",
        "the fingerprints differ: recorded fp_1, here fp_2",
    ]


def test_what_is_not_known_is_not_made_up() -> None:
    unknown = Difference(index=17, recorded=OutputToken(284), replayed=None)
    told = report(replay(unknown, recorded_fingerprints=[]))
    assert told[1:3] == ["recorded: 284, log probability not recorded", "here:     no more"]
    assert told[-1] == "the fingerprints differ: recorded none, here fp_1"


def test_a_difference_where_the_fingerprints_are_equal_is_the_servers_mistake() -> None:
    assert report(replay(OTHER))[-1].endswith("so this is a mistake of the server's")


def test_a_stream_that_moved_has_several() -> None:
    moved = report(replay(recorded_fingerprints=["fp_1", "fp_2"]))
    assert moved[-1] == "the fingerprints differ: recorded fp_1 and fp_2, here fp_1"


def test_another_prompt_is_told_where_the_tokens_differ() -> None:
    told = report(replay(OTHER, replayed_prompt_tokens=7))
    assert "the prompt had 5 tokens, and has 7 here" in told
    assert len(report(replay(replayed_prompt_tokens=7))) == 2


def test_a_title_is_one_line_and_short() -> None:
    start = Start(
        stream=2,
        record=1,
        request_id="r",
        model="m",
        fingerprint=None,
        prompt="Once\n\x1b upon " + "x" * 99,
        prompt_tokens=1,
        params=Params(),
    )
    assert title(Record(start)).startswith("stream 2: Once ␛ upon xxx")
    assert title(Record(start)).endswith("x…")


def test_a_fingerprint_in_a_record_is_shown_and_not_obeyed() -> None:
    told = report(replay(recorded_fingerprints=["\x1b[31mfp"]))
    assert told[-1] == "the fingerprints differ: recorded ␛[31mfp, here fp_1"
