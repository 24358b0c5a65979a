"""The client's state machine of a stream, fed with events: no socket, no event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import asdict, replace

from midstream.errors import ProtocolError
from midstream.options import explicit_credit
from midstream.protocol import (
    MAX_INDEX,
    Adjusted,
    Approved,
    Credit,
    Final,
    Inject,
    Injected,
    Message,
    Params,
    Paused,
    PauseReason,
    Reasoning,
    Resumed,
    Rewound,
    Snapshot,
    SnapshotCall,
    Started,
    StreamEvent,
    Token,
    TokenLogprob,
    ToolArguments,
    ToolCall,
    ToolCallDone,
    ToolResult,
)
from midstream.stream_core import Chunk, Restarted, StreamCore
from midstream.told import Place
from tests.fakes.counted_work import counted
from tests.fakes.scripted_server import final

Feed = Callable[[StreamEvent], None]


def feeding(core: StreamCore, after: int = -1) -> Feed:
    """Give the core events, each with the seq that is due."""
    seqs = iter(range(after + 1, MAX_INDEX))

    def feed(event: StreamEvent) -> None:
        event.seq = next(seqs)
        core.receive(event)

    return feed


def token(index: int, delta: str, *, count: int = 1, tokens: list[int] | None = None) -> Token:
    return Token(request_id="r", index=index, count=count, delta=delta, tokens=tokens)


def rewound(index: int, text_length: int) -> Rewound:
    return Rewound(request_id="r", index=index, text_length=text_length)


def snapshot(
    seq: int, index: int, text: str, *, tokens: list[int] | None = None, paused: PauseReason | None = None
) -> Snapshot:
    return Snapshot(
        request_id="r",
        seq=seq,
        index=index,
        text=text,
        tokens=tokens,
        model="m",
        prompt_tokens=5,
        params=Params(top_k=3),
        paused=paused,
    )


def rest(core: StreamCore) -> list[Chunk]:
    return list(iter(core.take, None))


# -- events --------------------------------------------------------------------------------------------


def test_events_are_told_as_they_came_also_what_was_rewound() -> None:
    core = StreamCore(4)
    feed = feeding(core)
    said = [
        token(0, "a"),
        Reasoning(request_id="r", index=0, count=1, delta="hm"),
        token(1, "b"),
        rewound(1, 1),
    ]
    for event in [*said, token(1, "c"), final("r", 2, "stop")]:
        feed(event)
    assert [core.take_event() for _ in range(3)] == said[:3]
    assert core.consumed == 1, "of the token that was rewound there is nothing to take"
    assert isinstance(core.take_event(), Rewound)
    assert [chunk.text for chunk in rest(core)] == ["c"]
    assert isinstance(core.take_event(), Final)
    assert core.take_event() is None


@given(st.lists(st.sampled_from(["token", "rewound", "chunk", "event"]), max_size=40))
def test_what_is_taken_in_either_way_is_taken_once(steps: list[str]) -> None:
    core, read = StreamCore(None), ""
    feed = feeding(core)
    for at, step in enumerate([*steps, *["event"] * 40]):
        if step == "token":
            feed(token(core.index, chr(at + 97)))
        elif step == "rewound":
            feed(rewound(core.index // 2, core.index // 2))
        elif step == "chunk" and (chunk := core.take()):
            read = read[: chunk.index] + chunk.text
        elif step == "event" and (event := core.take_event()):
            if isinstance(event, Token):
                read = read[: event.index] + event.delta
            elif isinstance(event, Rewound):
                read = read[: event.index]
        assert core.consumed <= core.index
    assert read == core.text
    assert core.consumed == core.index


# -- text and chunks -----------------------------------------------------------------------------------


def test_tokens_become_chunks_text_and_ids() -> None:
    core = StreamCore()
    feed = feeding(core)
    likely = TokenLogprob(7, -0.5)
    feed(Token(request_id="r", index=0, count=1, delta="Hel", tokens=[7], logprobs=[likely]))
    feed(token(1, "lo", count=2, tokens=[8, 9]))
    assert rest(core) == [Chunk(0, 1, "Hel", [7], [likely]), Chunk(1, 2, "lo", [8, 9])]
    assert (core.text, core.tokens, core.index, core.consumed) == ("Hello", [7, 8, 9], 3, 3)


def test_what_was_received_stands_though_it_was_not_taken() -> None:
    core = StreamCore()
    feed = feeding(core)
    feed(token(0, "a"))
    feed(token(1, "b"))
    assert core.take() == Chunk(0, 1, "a")
    assert (core.text, core.index, core.consumed) == ("ab", 2, 1)


def test_started_adjusted_paused_resumed_final() -> None:
    core = StreamCore()
    feed = feeding(core)
    assert not core.started
    feed(Started(request_id="r", model="m", prompt_tokens=5, params=Params(temperature=1.0, top_k=3)))
    assert (core.started, core.model, core.prompt_tokens, core.state) == (True, "m", 5, "running")
    feed(Adjusted(request_id="r", index=0, params=Params(temperature=0.25)))
    assert (core.params.temperature, core.params.top_k) == (0.25, 3)
    feed(Paused(request_id="r", index=0, reason="memory"))
    assert (core.state, core.pause_reason) == ("paused", "memory")
    feed(Resumed(request_id="r", index=0, recomputed_tokens=4))
    assert (core.state, core.pause_reason) == ("running", None)
    feed(Paused(request_id="r", index=0, reason="client"))
    end = final("r", 0, "cancelled")
    feed(end)
    assert (core.state, core.pause_reason, core.final) == ("finished", None, end)


# -- rewound -------------------------------------------------------------------------------------------


def test_rewound_takes_back_text_ids_and_chunks_that_wait() -> None:
    core = StreamCore()
    feed = feeding(core)
    for index, delta in enumerate("abcd"):
        feed(token(index, delta, tokens=[index]))
    core.take()
    feed(rewound(2, 2))
    assert (core.text, core.tokens, core.index, core.consumed) == ("ab", [0, 1], 2, 1)
    feed(token(2, "X", tokens=[9]))
    assert rest(core) == [Chunk(1, 1, "b", [1]), Chunk(2, 1, "X", [9])]
    assert (core.text, core.tokens) == ("abX", [0, 1, 9])


def test_rewound_behind_the_reader_moves_him_back() -> None:
    core = StreamCore()
    feed = feeding(core)
    for index, delta in enumerate("abc"):
        feed(token(index, delta))
    rest(core)
    feed(rewound(1, 1))
    feed(token(1, "Z"))
    assert core.consumed == 1
    assert rest(core) == [Chunk(1, 1, "Z")]
    assert core.text == "aZ"


def test_rewound_cuts_a_chunk_in_two() -> None:
    core = StreamCore()
    feed = feeding(core)
    likely = [TokenLogprob(i, -1.0) for i in range(3)]
    feed(Token(request_id="r", index=0, count=3, delta="one two three", tokens=[0, 1, 2], logprobs=likely))
    feed(rewound(2, 7))
    assert rest(core) == [Chunk(0, 2, "one two", [0, 1], likely[:2])]


def test_text_that_an_earlier_token_held_back_outlives_the_token_that_released_it() -> None:
    core = StreamCore()
    feed = feeding(core)
    feed(token(0, "a"))
    feed(token(1, ""))  # " fo", which may yet become a stop string
    feed(token(2, " fox"))
    rest_of_one = core.take()
    feed(rewound(2, 4))
    assert rest_of_one == Chunk(0, 1, "a")
    assert rest(core) == [Chunk(1, 1, ""), Chunk(2, 0, " fo")]
    assert (core.text, core.index, core.consumed) == ("a fo", 2, 2)


def test_text_length_counts_code_points() -> None:
    core = StreamCore()
    feed = feeding(core)
    feed(token(0, "👋🏽"))
    feed(token(1, "é"))
    feed(rewound(1, 2))
    assert core.text == "👋🏽"


@given(st.lists(st.one_of(st.text(max_size=3), st.integers(0, 30), st.none()), max_size=60))
def test_text_is_that_of_the_tokens_that_stand_whatever_was_rewound_and_taken(
    moves: list[str | int | None],
) -> None:
    """A text is a token that comes, a number a rewind, None a chunk taken."""
    core = StreamCore()
    feed = feeding(core)
    truth: list[str] = []
    read: list[str] = []  # what a reader has, who heeds each chunk's index
    for move in [*moves, *[None] * len(moves)]:
        if isinstance(move, str):
            feed(token(len(truth), move))
            truth.append(move)
        elif move is not None:
            del truth[move:]
            feed(rewound(len(truth), len("".join(truth))))
        elif chunk := core.take():
            read[chunk.index :] = [chunk.text]
        assert core.text == "".join(truth)
        assert core.index == len(truth)
    assert "".join(read[: len(truth)]) == core.text


# -- order ---------------------------------------------------------------------------------------------


def test_a_replayed_event_is_passed_over() -> None:
    core = StreamCore()
    for seq, index in ((0, 0), (1, 1), (0, 0), (1, 1), (2, 2)):
        core.receive(Token(request_id="r", seq=seq, index=index, count=1, delta="x"))
    assert core.text == "xxx"


def test_an_end_that_is_told_once_more_is_passed_over() -> None:
    core = StreamCore()
    assert [core.receive(replace(final("r", 0, "stop"), seq=0)) for _ in range(2)] == [True, False]


@pytest.mark.parametrize(
    "event",
    [
        Token(request_id="r", seq=2, index=1, count=1, delta="b"),
        Token(request_id="r", seq=1, index=2, count=1, delta="b"),
        Token(request_id="r", index=1, count=1, delta="b"),
        Rewound(request_id="r", seq=1, index=2, text_length=0),
        Rewound(request_id="r", seq=1, index=0, text_length=2),
        Token(request_id="r", seq=1, index=1, count=-1, delta="b"),
        Rewound(request_id="r", seq=1, index=-1, text_length=0),
        Rewound(request_id="r", seq=1, index=1, text_length=-1),
        snapshot(2, -1, "b"),
        Token(request_id="r", seq=1, index=1, count=2**31 - 1, delta="b"),
        Token(request_id="r", seq=1, index=1, count=2, delta="b", tokens=[1]),
        Token(request_id="r", seq=1, index=1, count=1, delta="b", logprobs=[]),
        snapshot(2, 2**31, "b"),
        snapshot(2, 2, "b", tokens=[1]),
        replace(final("r", 1, "stop"), seq=0),
    ],
    ids=[
        *("seq missing", "token missing", "no seq", "index not reached", "text not reached"),
        *("less than no token", "before the first", "before the text", "all of it before the first"),
        *("more than there can be", "a token untold", "a probability untold"),
        *("all of it behind the last", "a token of all untold", "an end before what has come"),
    ],
)
def test_an_event_that_cannot_come_here_changes_nothing(event: StreamEvent) -> None:
    core = StreamCore()
    feeding(core)(token(0, "a"))
    with pytest.raises(ProtocolError):
        core.receive(event)
    assert (core.text, core.index) == ("a", 1)


# -- snapshot ------------------------------------------------------------------------------------------


def test_snapshot_gives_only_what_was_not_taken() -> None:
    core = StreamCore()
    feed = feeding(core)
    feed(token(0, "a", tokens=[0]))
    core.take()
    feed(token(1, "b", tokens=[1]))
    core.receive(snapshot(40, 4, "abcd", tokens=[0, 1, 2, 3]))
    assert rest(core) == [Chunk(1, 3, "bcd", [1, 2, 3])]
    core.receive(Token(request_id="r", seq=41, index=4, count=1, delta="e", tokens=[4]))
    assert (core.text, core.tokens) == ("abcde", [0, 1, 2, 3, 4])


def test_snapshot_with_nothing_new_gives_nothing() -> None:
    core = StreamCore()
    feeding(core)(token(0, "a"))
    core.take()
    core.receive(snapshot(3, 1, "a"))
    assert rest(core) == []


@pytest.mark.parametrize(("index", "text"), [(3, "aXY"), (1, "a")])
def test_snapshot_of_another_course_begins_anew(index: int, text: str) -> None:
    """A rewind was missed: what the reader took no longer stands."""
    core = StreamCore()
    feed = feeding(core)
    feed(token(0, "a"))
    feed(token(1, "b"))
    rest(core)
    core.receive(snapshot(9, index, text))
    assert rest(core) == [Chunk(0, index, text)]
    assert core.text == text


@pytest.mark.parametrize("reason", ["client", None])
def test_snapshot_tells_of_the_start_the_parameters_and_the_pause(reason: PauseReason | None) -> None:
    core = StreamCore()
    core.receive(snapshot(12, 1, "a", paused=reason))
    assert (core.started, core.model, core.prompt_tokens, core.params) == (True, "m", 5, Params(top_k=3))
    assert (core.state, core.pause_reason) == ("paused" if reason else "running", reason)


# -- credit --------------------------------------------------------------------------------------------


def credited(window: int, interval: int = 1, credit: Credit | None = None) -> StreamCore:
    return StreamCore(window, interval, credit or explicit_credit(None, window, interval))


def test_pure_pull_grants_one_token_for_each_one_asked_for() -> None:
    core = credited(1)
    feed = feeding(core)
    assert explicit_credit(None, 1, 1) == Credit(limit=0)
    for index in range(3):
        assert core.extend_credit() == index + 1
        assert core.extend_credit() is None  # asking again for the same chunk
        feed(token(index, "x"))
        core.take()


def test_a_wide_window_is_refilled_by_halves() -> None:
    core = credited(8)
    feed = feeding(core)
    assert explicit_credit(None, 8, 1) == Credit(limit=8)
    grants = []
    for index in range(12):
        grants.append(core.extend_credit())
        feed(token(index, "x"))
        core.take()
    assert grants == [None] * 4 + [12] + [None] * 3 + [16] + [None] * 3


@given(st.integers(1, 40), st.integers(1, 40))
def test_whoever_waits_is_always_granted_a_whole_chunk_and_never_more_than_the_window(
    window: int, interval: int
) -> None:
    core = credited(window, interval)
    feed = feeding(core)
    granted = explicit_credit(None, window, interval).limit
    for start in range(0, 10 * interval, interval):
        granted = core.extend_credit() or granted
        assert interval <= granted - core.consumed <= max(window, interval)
        feed(token(start, "x", count=interval))
        core.take()


def test_old_grants_stand_after_a_rewind() -> None:
    core = credited(2)
    feed = feeding(core)
    for index in range(2):
        feed(token(index, "x"))
    rest(core)
    assert core.extend_credit() == 4
    feed(rewound(0, 0))
    assert core.extend_credit() is None
    for index in range(3):
        feed(token(index, "y"))
    rest(core)
    assert core.extend_credit() == 5


def test_nothing_is_granted_after_the_end_nor_when_credit_is_the_servers() -> None:
    core = credited(1)
    feeding(core)(final("r", 0, "stop"))
    assert core.extend_credit() is None
    assert StreamCore(None).extend_credit() is None


def test_credit_to_begin_with_may_be_given() -> None:
    assert explicit_credit({"prefetch": 4}, 64, 1) == Credit(limit=64, prefetch=4)
    assert explicit_credit({"limit": 0}, 64, 1) == Credit(limit=0)
    assert explicit_credit(Credit(limit=9), 64, 1) == Credit(limit=9)
    assert credited(4, 1, Credit(limit=0)).extend_credit() == 4


def test_a_grant_stays_within_what_an_index_may_be() -> None:
    assert StreamCore(2**31, 1, Credit(limit=0)).extend_credit() == MAX_INDEX


# -- reasoning and calls ---------------------------------------------------------------------------


def spoken(core: StreamCore) -> tuple[str, list[tuple[str, str, int | None]]]:
    return core.spans.reasoning, [(call.name, call.arguments, call.end) for call in core.spans.calls]


def called() -> StreamCore:
    """Five tokens: two of reasoning, and a call that is whole."""
    core = StreamCore()
    events: list[StreamEvent] = [
        Started(request_id="a", model="m", prompt_tokens=1, params=Params()),
        Token(request_id="a", index=0, count=5, delta=""),
        Reasoning(request_id="a", index=0, count=2, delta="Hm 🙂"),
        ToolCall(request_id="a", index=2, call_id="x", name="f"),
        ToolArguments(request_id="a", index=3, count=1, call_id="x", delta='{"a": '),
        ToolArguments(request_id="a", index=4, count=1, call_id="x", delta="1}"),
        ToolCallDone(request_id="a", index=2, end=5, call_id="x"),
    ]
    for seq, event in enumerate(events):
        event.seq = seq
        core.receive(event)
    return core


def test_reasoning_and_calls_stand_beside_the_text() -> None:
    core = called()
    assert (core.text, core.index) == ("", 5)
    assert spoken(core) == ("Hm 🙂", [("f", '{"a": 1}', 5)])
    assert core.spans.calls[0].whole


def test_they_are_rewound_with_it() -> None:
    core = called()
    core.receive(
        Rewound(
            request_id="a",
            seq=7,
            index=4,
            text_length=0,
            reasoning_length=4,
            tool_calls=1,
            arguments_length=6,
        )
    )
    assert spoken(core) == ("Hm 🙂", [("f", '{"a": ', None)])
    core.receive(Rewound(request_id="a", seq=8, index=1, text_length=0, reasoning_length=2))
    assert spoken(core) == ("Hm", [])
    with pytest.raises(ProtocolError, match="not the last"):
        core.receive(ToolArguments(request_id="a", seq=9, index=1, count=1, call_id="x", delta=""))


def test_results_that_waited_stand_where_they_go_in_also_while_the_client_has_paused_it() -> None:
    core = called()
    core.told.sent(ToolResult(request_id="a", call_id="x", content="mild", ref="1"))
    events: list[StreamEvent] = [
        Injected(request_id="a", index=5, count=0, ref="1"),
        Paused(request_id="a", index=5, reason="tool_call"),
        Paused(request_id="a", index=5, reason="client", ref="2"),
        Injected(request_id="a", index=5, count=9),
    ]
    for seq, event in enumerate(events, 7):
        event.seq = seq
        core.receive(event)
    assert core.told.results == {"x": Place(5, 0)}


def test_a_result_that_waited_is_told_no_more_once_its_call_is_written_anew() -> None:
    """The server has forgotten it."""
    core = called()
    core.told.sent(ToolResult(request_id="a", call_id="x", content="mild", ref="1"))
    core.receive(Injected(request_id="a", seq=7, index=5, count=0, ref="1"))
    assert "x" in core.told
    core.receive(Rewound(request_id="a", seq=8, index=4, text_length=0, reasoning_length=4, tool_calls=1))
    assert "x" not in core.told


def test_a_result_that_waited_is_nowhere_once_a_message_answers_its_call() -> None:
    core = called()
    answer = Message(role="tool", tool_call_id="x", content="hot")
    frames: list[ToolResult | Inject] = [
        ToolResult(request_id="a", call_id="x", content="mild", ref="1"),
        Inject(request_id="a", messages=[answer], ref="2"),
        ToolResult(request_id="a", call_id="y", content="mild", ref="3"),
    ]
    for seq, frame in enumerate(frames, 7):
        core.told.sent(frame)
        core.receive(Injected(request_id="a", seq=seq, index=5, count=9 * (seq > 7), ref=frame.ref))
    assert core.told.results == {"y": Place(5, 0)}


def test_what_was_told_behind_the_output_that_a_snapshot_has_stands_no_more() -> None:
    """A rewind went before it, which nobody has heard."""
    core = called()
    core.told.sent(ToolResult(request_id="a", call_id="x", content="mild", ref="1"))
    core.receive(Injected(request_id="a", seq=7, index=5, count=9, ref="1"))
    core.told.sent(Inject(request_id="a", messages=[Message(role="user", content="And?")], ref="2"))
    core.receive(Injected(request_id="a", seq=8, index=5, count=9, ref="2"))
    core.receive(snapshot(10, 1, ""))
    assert (core.told.results, core.told.turns) == ({}, [])


def test_a_snapshot_has_all_of_them() -> None:
    core = StreamCore()
    core.receive(
        Snapshot(
            request_id="a",
            seq=3,
            index=2,
            text="",
            model="m",
            prompt_tokens=1,
            params=Params(),
            reasoning="Hm",
            tool_calls=[SnapshotCall(index=0, call_id="x", name="f", arguments="{}", end=2)],
        )
    )
    assert spoken(core) == ("Hm", [("f", "{}", 2)])


def test_each_call_is_given_once_and_again_where_it_was_written_anew() -> None:
    core, told = called(), dict[int, SnapshotCall]()
    call = core.spans.next_whole(told)
    assert call is not None
    assert core.spans.next_whole(told) is None
    core.receive(Approved(request_id="a", seq=7, index=2, call_id="x"))
    approved = SnapshotCall(index=2, call_id="x", name="f", arguments='{"a": 1}', end=5)
    said = snapshot(9, 5, "")
    said.tool_calls = [approved]
    core.receive(said)
    assert core.spans.next_whole(told) is None, "nothing but a yes has come"
    amended: list[StreamEvent] = [
        Rewound(request_id="a", index=4, text_length=0, tool_calls=1, arguments_length=6),
        ToolArguments(request_id="a", index=4, count=0, call_id="x", delta="2"),
        Token(request_id="a", index=4, count=1, delta=""),
        ToolArguments(request_id="a", index=4, count=1, call_id="x", delta="}"),
        ToolCallDone(request_id="a", index=2, end=5, call_id="x"),
    ]
    for seq, event in enumerate(amended, 10):
        assert core.spans.next_whole(told) is None
        event.seq = seq
        core.receive(event)
    again = core.spans.next_whole(told)
    assert again is not None
    assert (again.call_id, again.arguments) == (call.call_id, '{"a": 2}')
    assert core.spans.next_whole(told) is None


def test_to_look_for_the_next_of_many_calls_is_to_look_at_each_once() -> None:
    core, told, many = StreamCore(), dict[int, SnapshotCall](), 300
    said = snapshot(0, many, "")
    said.tool_calls = [
        SnapshotCall(index=n, call_id=str(n), name="f", arguments="{}", end=n + 1) for n in range(many)
    ]
    core.receive(said)
    assert [call.call_id for call in iter(lambda: core.spans.next_whole(told), None)] == [
        str(n) for n in range(many)
    ]
    with counted() as work:
        assert core.spans.next_whole(told) is None
    assert work.lines < 10 * many


def begun_again(begun: Snapshot) -> tuple[StreamCore, Feed]:
    """With five tokens that nobody has taken, and events that are counted anew from there on."""
    core = StreamCore(64)
    feed = feeding(core)
    start = Started(request_id="r", model="m", prompt_tokens=5, params=Params())
    feed(start)
    for index in range(5):
        feed(token(index, f"{index} "))
    core.restart()
    feed = feeding(core, after=1)
    assert all(core.goes_on_with(event) for event in (replace(start, seq=0), begun))
    core.go_on(begun)
    return core, feed


def test_what_comes_of_a_stream_begun_again_is_read_behind_what_was_not_taken_before() -> None:
    core, feed = begun_again(snapshot(1, 5, "0 1 2 3 4 "))
    for index in range(5, 8):
        feed(token(index, f"{index} "))
    assert [chunk.text for chunk in iter(core.take, None)] == [f"{index} " for index in range(8)]
    assert core.take_event() is None


@pytest.mark.parametrize(("index", "text"), [(6, "0 1 2 3 4 5 "), (5, "0 1 2 3 4 5")])
def test_one_that_had_gone_on_by_then_says_so_among_its_events(index: int, text: str) -> None:
    core, feed = begun_again(snapshot(1, index, text))
    feed(token(index, "more"))
    told = [type(event).__name__ for event in iter(core.take_event, None)]
    assert told == ["Started", *["Token"] * 5, "Restarted", "Snapshot", "Token"]
    core, feed = begun_again(snapshot(1, index, text))
    feed(token(index, "more"))
    assert "".join(chunk.text for chunk in iter(core.take, None)) == core.text == text + "more"


OF: Any = {"request_id": "r"}
SAID: list[StreamEvent] = [
    Token(**OF, index=0, count=2, delta=""),
    Reasoning(**OF, index=0, count=2, delta="Hm"),
    Token(**OF, index=2, count=4, delta=""),
    Reasoning(**OF, index=2, count=4, delta=" 🙂"),
    ToolCall(**OF, index=3, call_id="x", name="f"),
    ToolArguments(**OF, index=2, count=4, call_id="x", delta='{"a": 1}'),
    ToolCallDone(**OF, index=3, end=6, call_id="x"),
]


def told_of(core: StreamCore, *events: StreamEvent) -> None:
    for event in events:
        core.receive(replace(event, seq=core.seq + 1))


@pytest.mark.parametrize("came", range(3, len(SAID) + 1))
def test_what_was_lost_beside_the_last_tokens_comes_as_it_would_have(came: int) -> None:
    """The server was lost between one event of a step and the next."""
    start = Started(**OF, model="m", prompt_tokens=1, params=Params())
    core, whole = StreamCore(), StreamCore()
    told_of(whole, start, *SAID)
    told_of(core, start, *SAID[:came])
    assert list(iter(core.take_event, None))
    begun = snapshot(1, 6, "")
    begun.reasoning, begun.tool_calls = "Hm 🙂", [SnapshotCall(**asdict(whole.spans.calls[0]))]
    core.restart()
    assert core.goes_on_with(replace(start, seq=0))
    assert core.goes_on_with(begun)
    told_of(core, *core.go_on(begun))
    assert core.seq == 1
    assert (core.spans.thoughts, spoken(core)) == (whole.spans.thoughts, spoken(whole))
    told = list(iter(core.take_event, None))
    assert isinstance(told[0], Restarted)
    assert [replace(event, seq=UNSET) for event in told[1:] if isinstance(event, StreamEvent)] == SAID[came:]
    assert (call := core.spans.next_whole({})) is not None
    assert call.parsed == {"a": 1}


@pytest.mark.parametrize(
    ("reasoning", "calls"),
    [
        ("Hm", []),
        ("Oh 🙂 no", [{}]),
        ("Hm 🙂", []),
        ("Hm 🙂", [{"call_id": "y"}]),
        ("Hm 🙂", [{"arguments": '{"a": 12}'}]),
        ("Hm 🙂", [{"end": None}]),
    ],
)
def test_a_stream_that_says_something_else_is_another(reasoning: str, calls: list[dict[str, Any]]) -> None:
    core = called()
    had = asdict(core.spans.calls[0])
    begun = snapshot(1, 5, "")
    begun.reasoning, begun.tool_calls = reasoning, [SnapshotCall(**{**had, **call}) for call in calls]
    core.restart()
    assert not core.goes_on_with(begun)
