"""What a stream has beside its text: reasoning, and calls of tools. Events in, what stands out, and as
messages; it knows no text."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from midstream.errors import ProtocolError
from midstream.protocol import (
    Approved,
    Beside,
    CalledFunction,
    Message,
    MessageToolCall,
    Reasoning,
    Rewound,
    Snapshot,
    SnapshotCall,
    StreamEvent,
    ToolArguments,
    ToolCall,
    ToolCallDone,
)
from midstream.schemas import from_json, result_text


class Call(Struct, frozen=True, kw_only=True):
    """A call of a tool as far as it has come. `arguments` are JSON once it is whole: when it has an `end`,
    the index behind its last token; `index` is its first. `approval`: it waits for one."""

    call_id: str
    name: str
    arguments: str
    index: int
    end: int | None = None
    approval: bool = False

    @property
    def whole(self) -> bool:
        return self.end is not None

    @property
    def parsed(self) -> dict[str, Any]:
        """The arguments of a whole call."""
        return from_json(self.arguments, dict[str, Any])

    def answer(self, result: object) -> Message:
        """The message that tells the model what came of it: a text as it is, anything else as JSON."""
        return Message(role="tool", tool_call_id=self.call_id, content=result_text(result))


def _call(told: SnapshotCall) -> Call:
    return Call(
        call_id=told.call_id,
        name=told.name,
        arguments=told.arguments,
        index=told.index,
        end=told.end,
        approval=told.approval,
    )


def answer_message(text: str, calls: list[Call]) -> Message:
    """An answer as a turn of the conversation that goes on: what is no whole call is none."""
    called = [
        MessageToolCall(id=call.call_id, function=CalledFunction(name=call.name, arguments=call.arguments))
        for call in calls
        if call.whole
    ]
    return Message(role="assistant", content=text or None if called else text, tool_calls=called or None)


class Thought(Struct, frozen=True):
    """What the model says to itself at a stretch: in the tokens from `index` to before `end`."""

    index: int
    end: int
    text: str


class Spans:
    def __init__(self) -> None:
        self.thoughts: list[Thought] = []
        self.made: set[str] = set()  # the ids of calls that were whole, also of those that were taken back
        self.told = 0  # calls that have begun, also those that were taken back
        self.stood_until = 0  # the last end of a call that stands by the last snapshot as it stood
        self._calls: list[SnapshotCall] = []  # each is another one once it is written anew

    @property
    def reasoning(self) -> str:
        return "".join(thought.text for thought in self.thoughts)

    @property
    def calls(self) -> list[Call]:
        """Whole ones, and perhaps one that is being written."""
        return [_call(told) for told in self._calls]

    def has(self, call: Call) -> bool:
        """Whether it stands as it was: whole, with these arguments."""
        of_that_name = (told for told in reversed(self._calls) if told.call_id == call.call_id)
        return any(told.end is not None and told.arguments == call.arguments for told in of_that_name)

    def next_whole(self, given: dict[int, SnapshotCall]) -> Call | None:
        """The first that is whole and was not `given`, where it is put, by its identity. One that was written
        anew was not."""
        for told in self._calls:
            if told.end is not None and id(told) not in given:
                given[id(told)] = told  # which keeps it, and so its identity its own
                return _call(told)
        return None

    def receive(self, event: StreamEvent) -> None:
        match event:
            case Reasoning():
                self._think(event)
            case ToolCall(index=index, call_id=call_id, name=name):
                self._calls.append(SnapshotCall(index=index, call_id=call_id, name=name, arguments=""))
                self.told += 1
            case ToolArguments(call_id=call_id, delta=delta):
                self._open(call_id).arguments += delta
            case ToolCallDone(call_id=call_id, end=end, approval=approval):
                call = self._open(call_id)
                call.end, call.approval = end, approval
                self.made.add(call_id)
            case Approved(call_id=call_id):
                for call in self._calls:
                    call.approval = call.approval and call.call_id != call_id

    def rewind(self, event: Rewound) -> None:
        self._forget(event.index, event.reasoning_length)
        del self._calls[event.tool_calls :]
        if self._calls:
            last = self._calls[-1]
            shortened = len(last.arguments) > event.arguments_length
            last.arguments = last.arguments[: event.arguments_length]
            if shortened or (last.end is not None and last.end > event.index):
                self._calls[-1] = replace(last, end=None, approval=False)

    def receive_snapshot(self, event: Snapshot) -> None:
        self.thoughts = [Thought(0, event.index, event.reasoning)] if event.reasoning else []
        known = {call.call_id: call for call in self._calls}
        self.told += sum(call.call_id not in known for call in event.tool_calls)
        self._calls = [_as_it_stood(call, known.get(call.call_id)) for call in event.tool_calls]
        stood = (call for call in self._calls if known.get(call.call_id) is call)
        self.stood_until = max((call.end or 0 for call in stood), default=0)
        self.made |= {call.call_id for call in self._calls if call.end is not None}

    def missing(self, begun: Snapshot, since: int) -> list[Beside] | None:
        """What stands in the tokens from `since` on and has not come: the events that tell it. None where
        what has come does not stand there."""
        name, count = begun.request_id, begun.index - since
        if not begun.reasoning.startswith(self.reasoning) or len(self._calls) > len(begun.tool_calls):
            return None
        missing: list[Beside] = []
        if rest := begun.reasoning[len(self.reasoning) :]:
            missing.append(Reasoning(request_id=name, index=since, count=count, delta=rest))
        for had, call in zip_longest(self._calls, begun.tool_calls):
            call_id, begins = call.call_id, call.index
            if had is None:
                missing.append(ToolCall(request_id=name, index=begins, call_id=call_id, name=call.name))
            elif had.call_id != call_id or not _goes_on(had, call):
                return None
            if rest := call.arguments[len(had.arguments) if had else 0 :]:
                more = ToolArguments(request_id=name, index=since, count=count, call_id=call_id, delta=rest)
                missing.append(more)
            if call.end is not None and (had is None or had.end is None):
                done = ToolCallDone(request_id=name, index=begins, end=call.end, call_id=call_id)
                missing.append(done)
        return missing

    def _think(self, event: Reasoning) -> None:
        index, before = event.index, ""
        if self.thoughts and self.thoughts[-1].end >= index:
            index, before = self.thoughts[-1].index, self.thoughts.pop().text
        self.thoughts.append(Thought(index, event.index + event.count, before + event.delta))

    def _forget(self, end: int, length: int) -> None:
        """What was said to oneself from token `end` on: so many code points stand."""
        thoughts, self.thoughts = self.thoughts, []
        for thought in thoughts:
            text = thought.text[:length]
            length -= len(text)
            if text:
                self.thoughts.append(Thought(thought.index, min(thought.end, end), text))

    def _open(self, call_id: str) -> SnapshotCall:
        if not self._calls or self._calls[-1].call_id != call_id:
            raise ProtocolError(f"more of call {call_id}, which is not the last that has begun")
        return self._calls[-1]


def _as_it_stood(call: SnapshotCall, had: SnapshotCall | None) -> SnapshotCall:
    """The same one, where nothing but a yes has come."""
    if had is None or replace(had, approval=call.approval) != call:
        return call
    had.approval = call.approval
    return had


def _goes_on(had: SnapshotCall, call: SnapshotCall) -> bool:
    """Whether it is the same call, or more of it where it was not whole."""
    if had.end is not None:
        return (had.end, had.arguments) == (call.end, call.arguments)
    return call.arguments.startswith(had.arguments)
