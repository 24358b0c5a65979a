"""What a client makes of a stream's events, reasoning and calls among them: by docs/protocol.md alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from midstream import protocol
from midstream.protocol import (
    Final,
    Reasoning,
    Rewound,
    Snapshot,
    Token,
    ToolArguments,
    ToolCall,
    ToolCallDone,
)


class FoldedSpans:
    def __init__(self) -> None:
        self.content = self.reasoning = ""
        self.calls: list[dict[str, Any]] = []
        self.index = 0
        self.seq = -1
        self.final: Final | None = None

    def read(self, events: Iterable[object]) -> None:
        for event in events:
            if isinstance(event, protocol.StreamEvent) and isinstance(event.seq, int):
                assert event.seq == self.seq + 1 or isinstance(event, Snapshot)
                self.seq = event.seq
            self._read(event)

    def _read(self, event: object) -> None:
        match event:
            case Token(index=index, count=count, delta=delta):
                assert index == self.index
                self.index += count
                self.content += delta
            case Reasoning(index=index, count=count, delta=delta):
                assert index + count <= self.index
                self.reasoning += delta
            case ToolCall(index=index, call_id=call_id, name=name):
                assert index <= self.index
                self.calls.append({"index": index, "id": call_id, "name": name, "arguments": "", "end": None})
            case ToolArguments(index=index, count=count, call_id=call_id, delta=delta):
                assert index + count <= self.index
                assert self.calls[-1]["id"] == call_id
                self.calls[-1]["arguments"] += delta
            case ToolCallDone(index=index, end=end, call_id=call_id):
                assert (self.calls[-1]["id"], self.calls[-1]["index"]) == (call_id, index)
                assert index <= end <= self.index
                self.calls[-1]["end"] = end
            case Rewound():
                self._rewind(event)
            case Snapshot():
                self.content, self.reasoning, self.index = event.text, event.reasoning, event.index
                self.calls = [
                    {
                        "index": c.index,
                        "id": c.call_id,
                        "name": c.name,
                        "arguments": c.arguments,
                        "end": c.end,
                    }
                    for c in event.tool_calls
                ]
            case Final():
                self.final = event

    def _rewind(self, event: Rewound) -> None:
        assert event.index <= self.index
        self.index = event.index
        self.content = self.content[: event.text_length]
        self.reasoning = self.reasoning[: event.reasoning_length]
        del self.calls[event.tool_calls :]
        if self.calls:
            last = self.calls[-1]
            shortened = len(last["arguments"]) > event.arguments_length
            last["arguments"] = last["arguments"][: event.arguments_length]
            if shortened or (last["end"] is not None and last["end"] > event.index):
                last["end"] = None

    @property
    def said(self) -> tuple[str, str, list[tuple[str, str, int, int | None]]]:
        """All of it but the calls' ids."""
        return (
            self.content,
            self.reasoning,
            [(call["name"], call["arguments"], call["index"], call["end"]) for call in self.calls],
        )
