"""The results of a stream's calls: those that wait for the results of other calls, and which calls have
theirs.

Where a stream pauses at its calls, a turn's results go into it together, in the order of the calls and when
the turn has ended: so a model is told. Where it goes on meanwhile, each goes in by itself. It knows calls and
messages, and neither frames nor tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from midstream import protocol
from midstream.protocol import Message
from realtime.refusal import Refusal
from realtime.stream.memory import CHARACTER_BYTES
from realtime.stream.spanned_text import Call

RESULT_BYTES, PART_BYTES = 200, 50  # each, beside its text


class CallResults:
    def __init__(self, *, together: bool) -> None:
        self._together = together
        self._waiting: dict[str, protocol.ToolResult] = {}  # by call
        self._waiting_bytes = 0  # counted when they change: a result may have very many parts
        self._given: list[tuple[int, str]] = []  # index of the output token behind it, and the call

    @property
    def bytes(self) -> int:
        return self._waiting_bytes + RESULT_BYTES * len(self._given)

    def missing(self, calls: Sequence[Call]) -> list[Call]:
        """Those of the calls that have no result in the stream."""
        given = {call_id for _, call_id in self._given}
        return [call for call in calls if call.end is not None and call.call_id not in given]

    def take(self, result: protocol.ToolResult, calls: Sequence[Call]) -> list[Message]:
        """Take a result in; returns what is to be told to the model now. Another result for the same call
        replaces one that waits."""
        if (result.content is None) == (result.error is None):
            raise Refusal("invalid_frame", "A tool_result has either `content` or `error`.")
        missing = self.missing(calls)
        due = next((call for call in missing if call.call_id == result.call_id), None)
        if due is None:
            raise Refusal(
                "invalid_params",
                f'Request {result.request_id} waits for no result of a call "{result.call_id}"'
                + (f": it does for {_listed(missing)}." if missing else "."),
            )
        self._drop(result.call_id)
        self._waiting[result.call_id] = result
        self._waiting_bytes += _weight(result)
        told = missing if self._together else [due]
        if any(call.call_id not in self._waiting for call in told):
            return []
        return [_message(call, self._waiting[call.call_id]) for call in told]

    def is_all(self, messages: Sequence[Message], calls: Sequence[Call]) -> bool:
        """Whether these results, which wait, are those of all calls that have none in the stream."""
        told = [message.tool_call_id for message in messages]
        return told == [call.call_id for call in self.missing(calls)] and self._waiting.keys() >= set(told)

    def give(self, index: int, messages: Sequence[Message]) -> None:
        """These stand before output token `index` now."""
        for message in messages:
            if message.tool_call_id is not None:
                self._drop(message.tool_call_id)
                self._given.append((index, message.tool_call_id))

    def cut(self, index: int, calls: Sequence[Call]) -> None:
        """Output from `index` on is void, and what was injected behind it; these calls are left."""
        self._given = [(at, call_id) for at, call_id in self._given if at <= index]
        left = {call.call_id for call in calls}
        for call_id in self._waiting.keys() - left:
            self._drop(call_id)

    def _drop(self, call_id: str) -> None:
        result = self._waiting.pop(call_id, None)
        if result is not None:
            self._waiting_bytes -= _weight(result)


def _message(call: Call, result: protocol.ToolResult) -> Message:
    content = json.dumps({"error": result.error}) if result.content is None else result.content
    return Message(role="tool", content=content, name=call.name, tool_call_id=call.call_id)


def _weight(result: protocol.ToolResult) -> int:
    if isinstance(result.content, list):
        parts = sum(PART_BYTES + CHARACTER_BYTES * len(part.text) for part in result.content)
        return RESULT_BYTES + parts
    return RESULT_BYTES + CHARACTER_BYTES * len(result.content or result.error or "")


def _listed(calls: Sequence[Call]) -> str:
    return ", ".join(f'"{call.call_id}"' for call in calls[:8])
