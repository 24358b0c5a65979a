"""A recorder, from frames and events to lines: each control where the server said, and nothing unknown."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from midstream import protocol
from midstream.forked_record import OnToolCall, lines_of_fork
from midstream.protocol import GuardAction, Message, Params, PauseReason, StreamEvent, TokenLogprob
from midstream.record_format import (
    Adjust,
    Final,
    Forked,
    Guard,
    Inject,
    Line,
    Lost,
    Moved,
    Pause,
    Record,
    Resume,
    Rewind,
    Start,
    Tokens,
    ToolResult,
    Waits,
    encode_line,
    parse_records,
)
from midstream.recording import Recording, StreamRecorder, read_records

STARTED = protocol.Started(
    request_id="r", model="toy", prompt_tokens=3, params=Params(seed=5, logprobs=0), fingerprint="fp_1"
)


class Recorded:
    """A stream that is recorded."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        start = protocol.Start(request_id="r", prompt="Hi")
        self.recorder = StreamRecorder(1, start, self.lines.append)
        self.receive(STARTED)

    def sent(self, frame: protocol.Frame) -> None:
        self.recorder.sent(frame)

    def receive(self, *events: StreamEvent) -> None:
        for event in events:
            self.recorder.receive(event)

    @property
    def behind_the_start(self) -> list[Line]:
        return self.lines[1:]


def paused(reason: PauseReason, ref: str | None = None) -> protocol.Paused:
    return protocol.Paused(request_id="r", index=2, reason=reason, ref=ref)


def resumed(ref: str | None = None, fingerprint: str | None = None) -> protocol.Resumed:
    return protocol.Resumed(request_id="r", index=2, recomputed_tokens=0, ref=ref, fingerprint=fingerprint)


def token(index: int = 0) -> protocol.Token:
    told = [TokenLogprob(97, -0.5, [(97, -0.5)]), TokenLogprob(98, -0.25)]
    return protocol.Token(request_id="r", index=index, count=2, delta="ab", tokens=[97, 98], logprobs=told)


def test_a_clients_own_rewind_is_one_also_where_a_guard_is_about_to_go_back() -> None:
    recorded = Recorded()
    recorded.receive(
        token(),
        protocol.Guarded(request_id="r", index=1, name="g", do="rewind"),
        protocol.Rewound(request_id="r", index=1, text_length=1, ref="1"),
        protocol.Rewound(request_id="r", index=1, text_length=1),
    )
    assert recorded.behind_the_start[1:] == [
        Rewind(stream=1, index=1),
        Guard(stream=1, index=1, name="g", do="rewind"),
    ]


@pytest.mark.parametrize("do", ["rewind", "pause"])
def test_what_changes_where_a_guard_is_about_to_act_is_recorded_behind_its_act(
    do: Literal["rewind", "pause"],
) -> None:
    """What it acts upon was sampled without."""
    recorded = Recorded()
    adjusted = protocol.Adjusted(request_id="r", index=2, params=Params(top_k=3), ref="1")
    acts = protocol.Rewound(request_id="r", index=2, text_length=2) if do == "rewind" else paused("guard")
    recorded.receive(token(), protocol.Guarded(request_id="r", index=2, name="g", do=do), adjusted, acts)
    assert recorded.behind_the_start[1:] == [
        Guard(stream=1, index=2, name="g", do=do),
        Adjust(stream=1, index=2, params=Params(top_k=3)),
    ]


def test_a_start_is_recorded_as_the_server_resolved_it() -> None:
    assert Recorded().lines == [
        Start(
            stream=1,
            record=1,
            request_id="r",
            model="toy",
            fingerprint="fp_1",
            prompt="Hi",
            prompt_tokens=3,
            params=Params(seed=5, logprobs=0),
        )
    ]


def test_tokens_have_ids_and_log_probabilities() -> None:
    recorded = Recorded()
    recorded.receive(token())
    (line,) = recorded.behind_the_start
    assert line == Tokens(stream=1, index=0, text="ab", tokens=[97, 98], logprobs=[-0.5, -0.25])


def test_controls_are_recorded_where_they_took_effect() -> None:
    recorded = Recorded()
    turn = [Message(role="user", content="Why?")]
    recorded.sent(protocol.Adjust(request_id="r", params=Params(temperature=0), at=1, ref="1"))
    recorded.sent(protocol.Inject(request_id="r", messages=turn, ref="2"))
    recorded.sent(protocol.Pause(request_id="r", kv="release", ref="3"))
    recorded.sent(protocol.Resume(request_id="r", ref="4"))
    recorded.receive(
        token(),
        protocol.Rewound(request_id="r", index=1, text_length=1),
        protocol.Adjusted(request_id="r", index=1, params=Params(temperature=0, seed=5), ref="1"),
        protocol.Injected(request_id="r", index=1, count=9, ref="2"),
        paused("client", "3"),
        resumed("4"),
        protocol.Final(
            request_id="r",
            index=2,
            finish_reason="cancelled",
            usage=protocol.Usage(
                prompt_tokens=1,
                completion_tokens=1,
                total_tokens=2,
                cached_tokens=0,
                injected_tokens=0,
                discarded_tokens=0,
            ),
            timing=protocol.Timing(queue_ms=0, ttft_ms=0, total_ms=0, paused_ms=0, tokens_per_s=0),
        ),
    )
    assert recorded.behind_the_start[1:] == [
        Rewind(stream=1, index=1),
        Adjust(stream=1, index=1, params=Params(temperature=0)),
        Inject(stream=1, index=1, messages=turn),
        Pause(stream=1, index=2, kv="release"),
        Resume(stream=1, index=2),
        Final(stream=1, index=2, finish_reason="cancelled"),
    ]


def test_what_was_refused_is_no_control() -> None:
    recorded = Recorded()
    recorded.sent(protocol.Inject(request_id="r", text="too long", ref="1"))
    recorded.sent(protocol.Inject(request_id="r", text="short", ref="2"))
    recorded.receive(protocol.Injected(request_id="r", index=0, count=1, ref="2"))
    assert recorded.behind_the_start == [Inject(stream=1, index=0, text="short")]


def called(*call_ids: str) -> list[StreamEvent]:
    return [
        event
        for index, name in enumerate(call_ids)
        for event in (
            protocol.ToolCall(request_id="r", index=index, call_id=name, name="weather"),
            protocol.ToolCallDone(request_id="r", index=index, end=index + 1, call_id=name),
        )
    ]


def injected(count: int, ref: str | None = None) -> protocol.Injected:
    return protocol.Injected(request_id="r", index=2, count=count, ref=ref)


def test_results_are_controls_where_they_go_in_and_so_is_the_wait_for_them() -> None:
    recorded = Recorded()
    recorded.receive(*called("x", "y"))
    recorded.sent(protocol.ToolResult(request_id="r", call_id="y", content="hot", ref="1"))
    recorded.receive(injected(0, "1"), paused("tool_call"))
    recorded.sent(protocol.ToolResult(request_id="r", call_id="x", error="gone", ref="2"))
    recorded.receive(injected(9, "2"), resumed())
    assert recorded.behind_the_start == [
        Waits(stream=1, index=2),
        ToolResult(stream=1, index=2, call=1, content="hot"),
        ToolResult(stream=1, index=2, call=0, error="gone"),
    ]


def test_results_that_were_all_there_before_the_turns_end_go_in_there() -> None:
    """Also where the client has paused it, as where its pause came with the end of the turn."""
    recorded = Recorded()
    recorded.receive(*called("x"))
    recorded.sent(protocol.ToolResult(request_id="r", call_id="x", content="mild", ref="1"))
    recorded.sent(protocol.Pause(request_id="r", ref="2"))
    recorded.receive(injected(0, "1"), paused("tool_call"), paused("client", "2"), injected(9))
    assert recorded.behind_the_start == [
        Waits(stream=1, index=2),
        Pause(stream=1, index=2),
        ToolResult(stream=1, index=2, call=0, content="mild"),
    ]


def test_a_result_that_waited_is_none_of_a_call_that_is_written_anew() -> None:
    """The server has forgotten it."""
    recorded = Recorded()
    recorded.receive(*called("x", "y"))
    recorded.sent(protocol.ToolResult(request_id="r", call_id="y", content="hot", ref="1"))
    recorded.receive(injected(0, "1"), protocol.Rewound(request_id="r", index=1, text_length=1, tool_calls=2))
    recorded.sent(protocol.ToolResult(request_id="r", call_id="x", content="mild", ref="2"))
    recorded.receive(injected(9, "2"))
    assert recorded.behind_the_start == [
        Rewind(stream=1, index=1),
        ToolResult(stream=1, index=2, call=0, content="mild"),
    ]


def test_a_result_that_waited_is_none_once_a_message_answers_its_call() -> None:
    recorded = Recorded()
    recorded.receive(*called("x", "y"))
    answer = Message(role="tool", tool_call_id="x", content="hot")
    recorded.sent(protocol.ToolResult(request_id="r", call_id="x", content="mild", ref="1"))
    recorded.sent(protocol.Inject(request_id="r", messages=[answer], ref="2"))
    recorded.sent(protocol.ToolResult(request_id="r", call_id="y", content="mild", ref="3"))
    recorded.receive(injected(0, "1"), injected(9, "2"), injected(9, "3"))
    assert recorded.behind_the_start == [
        Inject(stream=1, index=2, messages=[answer]),
        ToolResult(stream=1, index=2, call=1, content="mild"),
    ]


def test_a_result_that_is_told_again_elsewhere_is_one() -> None:
    recorded = Recorded()
    recorded.receive(*called("x", "y"))
    results = [
        protocol.ToolResult(request_id="r", call_id=call, content="mild", ref=ref)
        for call, ref in (("x", "1"), ("x", "1"), ("y", "2"))
    ]
    for result, count in zip(results, (0, 0, 9), strict=True):
        recorded.sent(result)
        recorded.receive(injected(count, result.ref))
    assert recorded.behind_the_start == [
        ToolResult(stream=1, index=2, call=call, content="mild") for call in (0, 1)
    ]


def test_a_result_that_was_taken_back_is_waited_for_again() -> None:
    recorded = Recorded()
    recorded.receive(*called("x"))
    for ref in ("1", "2"):
        recorded.receive(paused("tool_call"))
        recorded.sent(protocol.ToolResult(request_id="r", call_id="x", content="mild", ref=ref))
        recorded.receive(injected(9, ref), resumed())
        recorded.receive(protocol.Rewound(request_id="r", index=1, text_length=1, tool_calls=1))
    result = ToolResult(stream=1, index=2, call=0, content="mild")
    assert recorded.behind_the_start == [Waits(stream=1, index=2), result, Rewind(stream=1, index=1)] * 2


def forked(lines: list[Line], at: int, *, on_tool_call: OnToolCall = "finish") -> Record:
    """Of a fork, before output token `at`, of a stream of these lines: two tokens stand then."""
    start = Start(
        stream=1,
        request_id="r",
        record=1,
        model="toy",
        prompt="Hi",
        fingerprint=None,
        prompt_tokens=3,
        params=Params(),
        on_tool_call="pause",
    )
    begin = lines_of_fork(Record(start, lines), at, [97, 98], Params(), on_tool_call, 2)
    assert begin is not None
    assert isinstance(begin[0], Start)
    return Record(begin[0], begin[1:])


def test_a_fork_has_what_was_put_in_right_before_it_behind_a_rewind_to_there() -> None:
    lines: list[Line] = [
        Tokens(stream=1, index=0, text="", tokens=[97, 98, 99]),
        Rewind(stream=1, index=2),
        Inject(stream=1, index=2, text=" But"),
        Tokens(stream=1, index=2, text="", tokens=[100]),
    ]
    assert [type(line) for line in forked(lines, 2).lines] == [Tokens, Rewind, Inject, Forked]


def test_a_fork_has_nothing_that_took_effect_behind_it_ahead_of_what_had_been_sent() -> None:
    """It had been decoded, and the tokens before it came later."""
    lines: list[Line] = [
        Tokens(stream=1, index=0, text="", tokens=[97, 98]),
        Inject(stream=1, index=5, text=" But"),
        Pause(stream=1, index=5),
        Tokens(stream=1, index=2, text="", tokens=[99, 100, 101]),
    ]
    assert [type(line) for line in forked(lines, 2).lines] == [Tokens, Forked]


def test_a_fork_says_itself_what_becomes_of_its_calls() -> None:
    lines: list[Line] = [Tokens(stream=1, index=0, text="", tokens=[97, 98]), Waits(stream=1, index=2)]
    record = forked(lines, 2, on_tool_call="continue")
    assert record.start.on_tool_call == "pause"
    assert record.lines[1:] == [
        Waits(stream=2, index=2),
        Forked(stream=2, index=2, params=Params(), on_tool_call="continue"),
    ]


def test_results_that_are_told_again_elsewhere_leave_others_their_answers() -> None:
    recorded = Recorded()
    recorded.receive(*called("x", "y"))
    first = protocol.ToolResult(request_id="r", call_id="x", content="mild", ref="1")
    recorded.sent(first)
    recorded.receive(injected(0, "1"))
    recorded.sent(protocol.ToolResult(request_id="r", call_id="y", content="hot", ref="2"))
    recorded.recorder.sent_again([first])
    recorded.receive(injected(0, "1"), injected(9, "2"))
    results = [line for line in recorded.behind_the_start if isinstance(line, ToolResult)]
    assert [(line.call, line.content) for line in results] == [(0, "mild"), (1, "hot")]


def test_the_result_of_a_call_that_is_gone_goes_with_it() -> None:
    """Both were put in, and so end where they begin; the first is amended."""
    recorded = Recorded()
    for name in ("x", "y"):
        recorded.receive(
            protocol.ToolCall(request_id="r", index=0, call_id=name, name="weather"),
            protocol.ToolCallDone(request_id="r", index=0, end=0, call_id=name),
        )
    recorded.sent(protocol.ToolResult(request_id="r", call_id="y", content="hot", ref="1"))
    recorded.receive(injected(0, "1"), protocol.Rewound(request_id="r", index=0, text_length=0, tool_calls=1))
    recorded.sent(protocol.ToolResult(request_id="r", call_id="x", content="mild", ref="2"))
    recorded.receive(injected(9, "2"))
    results = [line for line in recorded.behind_the_start if isinstance(line, ToolResult)]
    assert [(line.call, line.content) for line in results] == [(0, "mild")]


@pytest.mark.parametrize("reason", ["memory", "detached", "engine"])
def test_what_nobody_asked_for_is_no_control(reason: PauseReason) -> None:
    recorded = Recorded()
    recorded.receive(paused(reason), resumed())
    assert recorded.behind_the_start == []


def test_who_computes_from_now_on_is_recorded() -> None:
    recorded = Recorded()
    recorded.receive(paused("engine"), resumed(fingerprint="fp_2"))
    assert recorded.behind_the_start == [Moved(stream=1, index=2, fingerprint="fp_2")]


def test_another_connections_adjust_is_recorded_and_its_pause() -> None:
    recorded = Recorded()
    recorded.receive(
        protocol.Adjusted(request_id="r", index=0, params=Params(temperature=1, seed=5), ref="theirs"),
        paused("client", "theirs"),
        resumed("theirs"),
    )
    assert recorded.behind_the_start == [
        Adjust(stream=1, index=0, params=Params(temperature=1, seed=5)),
        Pause(stream=1, index=2),
        Resume(stream=1, index=2),
    ]


def test_behind_what_is_not_known_nothing_is_recorded() -> None:
    snapshot = protocol.Snapshot(
        request_id="r", index=9, text="abcdefghi", model="toy", prompt_tokens=3, params=Params()
    )
    for unknown in (snapshot, protocol.Injected(request_id="r", index=2, count=1, ref="theirs")):
        recorded = Recorded()
        recorded.receive(token(), unknown, token(9))
        (lost,) = recorded.behind_the_start[1:]
        assert isinstance(lost, Lost)
        assert lost.index == 2


# -- the file --------------------------------------------------------------------------------------


def test_a_recording_numbers_its_streams_and_asks_for_what_it_needs(tmp_path: Path) -> None:
    closed: list[bool] = []
    with Recording(tmp_path / "a.jsonl", lambda: closed.append(True)) as recording:
        for prompt in ("a", "b"):
            start = protocol.Start(request_id=prompt, prompt=prompt, params=Params(logprobs=None))
            recorder = recording.recorder(start)
            assert (start.return_tokens, start.params.logprobs) == (True, 0)
            recorder.receive(STARTED)
            recorder.receive(token())
    recorder.receive(token(2))
    recording.close()
    assert closed == [True]
    records = read_records(tmp_path / "a.jsonl")
    assert [(one.start.stream, one.start.prompt, len(one.lines)) for one in records] == [
        (1, "a", 1),
        (2, "b", 1),
    ]


def test_for_a_fork_the_lines_of_its_stream_alone_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the file was, for each fork: a second for every 15 MB, in which the client did nothing else."""
    texts = []

    def parse(text: str) -> list[Record]:
        texts.append(text)
        return parse_records(text)

    monkeypatch.setattr("midstream.recording.parse_records", parse)
    with Recording(tmp_path / "a.jsonl", lambda: None) as recording:
        for name in ("a", "b"):
            recorder = recording.recorder(protocol.Start(request_id=name, prompt=name))
            recorder.receive(STARTED)
            recorder.receive(token())
        fork, params = protocol.Fork(request_id="b", at=2), STARTED.params
        recorder = recording.recorder(protocol.Start(request_id="c", fork=fork))
        recorder.receive(replace(STARTED, fingerprint="fp_2"))  # it is computed by another engine
        recorder.receive(
            protocol.Snapshot(
                request_id="c",
                index=2,
                text="ab",
                tokens=[97, 98],
                model="toy",
                prompt_tokens=3,
                params=params,
            )
        )
    assert [len(text.splitlines()) for text in texts] == [2]
    *_, forked = read_records(tmp_path / "a.jsonl")
    assert (forked.start.prompt, [type(line) for line in forked.lines]) == (
        "b",
        [Tokens, Forked, Moved],
    )


def test_more_log_probabilities_than_are_needed_stay_asked_for(tmp_path: Path) -> None:
    start = protocol.Start(request_id="r", prompt="a", params=Params(logprobs=3))
    with Recording(tmp_path / "a.jsonl", lambda: None) as recording:
        recording.recorder(start)
    assert start.params.logprobs == 3


def test_a_full_disk_costs_the_record_and_not_the_stream() -> None:
    recording = Recording("/dev/full", lambda: None)
    recorder = recording.recorder(protocol.Start(request_id="r", prompt="a"))
    recorder.receive(STARTED)
    recorder.receive(token())
    with pytest.raises(OSError) as told:  # noqa: PT011 - its number is looked at
        recording.close()
    assert (told.value.errno, told.value.filename) == (errno.ENOSPC, "/dev/full")


def test_another_thread_may_close_it_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the synchronous client, whose streams are read in a thread of its own."""
    recording = Recording(tmp_path / "a.jsonl", lambda: None)
    recorder = recording.recorder(protocol.Start(request_id="r", prompt="a"))
    recorder.receive(STARTED)

    def close_meanwhile(line: Line) -> bytes:
        closing = threading.Thread(target=recording.close)
        closing.start()
        closing.join()
        return encode_line(line)

    monkeypatch.setattr("midstream.recording.encode_line", close_meanwhile)
    recorder.receive(token())
    (record,) = read_records(tmp_path / "a.jsonl")
    assert record.lines == []


def test_acts_of_guards_are_recorded_where_they_take_effect() -> None:
    recorded = Recorded()
    acts: list[tuple[GuardAction, int]] = [("rewind", 1), ("tell", 2), ("finish", 0)]
    for do, index in acts:
        recorded.receive(token(), protocol.Guarded(request_id="r", index=index, name=do, do=do))
        if do != "tell":
            recorded.receive(protocol.Rewound(request_id="r", index=index, text_length=index))
    recorded.receive(protocol.Guarded(request_id="r", index=2, name="p", do="pause"), paused("guard"))
    recorded.sent(protocol.Resume(request_id="r", ref="1"))
    recorded.receive(resumed("1"))
    lines = [line for line in recorded.behind_the_start if not isinstance(line, Tokens)]
    assert lines == [
        Guard(stream=1, index=1, name="rewind", do="rewind"),
        Guard(stream=1, index=0, name="finish", do="finish"),
        Guard(stream=1, index=2, name="p", do="pause"),
        Resume(stream=1, index=2),
    ]
