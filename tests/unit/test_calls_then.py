"""The calls of a stream as they will stand, by what was asked of it."""

from __future__ import annotations

from engine import api
from midstream.protocol import Amend, Approve, Inject, Message, Rewind
from realtime.stream.calls_then import calls_then
from realtime.stream.pending_commands import PendingCommand
from realtime.stream.spanned_text import Call

END = 40  # of the output


class WatchedId(str):
    """Of a call; how often any of them was compared."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        WatchedId.compared += 1
        return str.__eq__(self, other)


def calls(count: int) -> list[Call]:
    """Each of ten tokens."""
    return [Call(WatchedId(at), 10 * at, "find", [], end=10 * at + 9) for at in range(count)]


def told(*call_ids: str) -> PendingCommand:
    messages = [Message(role="tool", tool_call_id=call_id, content="7") for call_id in call_ids]
    return PendingCommand(api.Append(0, [1]), Inject(request_id="a", messages=messages), 0)


def gone_back(to: int) -> PendingCommand:
    return PendingCommand(api.Truncate(0, to), Rewind(request_id="a", to=to), 0)


def approved(call_id: str) -> PendingCommand:
    return PendingCommand(None, Approve(request_id="a", call_id=call_id), 0)


def amended(call_id: str) -> PendingCommand:
    return PendingCommand(None, Amend(request_id="a", call_id=call_id, arguments={}), 0)


def then(*asked: PendingCommand) -> list[tuple[str, bool, int | None]]:
    return [(call.call_id, call.approved, call.answered) for call in calls_then(calls(3), asked, END)]


def test_what_goes_back_takes_calls_and_results_with_it() -> None:
    assert then(told("0"), gone_back(30)) == [("0", False, None), ("1", False, None), ("2", False, None)]
    assert then(gone_back(30), told("0")) == [("0", False, 30), ("1", False, None), ("2", False, None)]
    assert then(told("0"), gone_back(20), told("0", "2")) == [("0", False, 20), ("1", False, None)]


def test_one_that_is_amended_is_none_until_it_is_written_and_nor_are_those_behind_it() -> None:
    assert then(told("0"), amended("1"), told("2"), approved("1")) == [("0", False, None)]
    assert then(gone_back(20), amended("2")) == [("0", False, None), ("1", False, None)]


def test_nor_behind_one_that_broke_off() -> None:
    """It may be amended too."""
    first, broken, last = calls(3)
    broken.end = None
    asked = [amended("1"), told("2")]
    assert [call.call_id for call in calls_then([first, broken, last], asked[:0], END)] == ["0", "2"]
    assert [call.call_id for call in calls_then([first, broken, last], asked, END)] == ["0"]


def test_the_first_of_two_results_stands() -> None:
    assert then(told("1"), approved("1"), gone_back(END), told("1"))[1] == ("1", True, END)


def test_many_frames_are_not_held_against_each_of_many_calls() -> None:
    whole = calls(300)
    asked = [approved(str(at)) for at in range(300)] + [told(str(at)) for at in range(300)]
    WatchedId.compared = 0
    assert all(call.approved and call.answered == 3000 for call in calls_then(whole, asked, 3000))
    assert WatchedId.compared <= 10 * (len(whole) + len(asked))
