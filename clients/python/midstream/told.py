"""What the client has told a stream beside its own words, and where that stands: results of calls, and turns
of others. Frames and events in; pure.

A result of several that belong together waits in the server until the last of them, or the end of the
model's turn: docs/protocol.md, `tool_result`.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from midstream.protocol import Frame, Inject, Injected, Message, ToolResult


class Place(Struct, frozen=True, order=True):
    """The output token before which something stands, and how much text stands before it."""

    index: int
    text_length: int


class Told:
    def __init__(self) -> None:
        self.results: dict[str, Place] = {}  # by call
        self.turns: list[tuple[Place, list[Message]]] = []
        self.doubtful: set[str] = set()  # calls whose results somebody may have taken back
        self._sent: list[ToolResult | Inject] = []  # and not answered yet
        self._waiting: set[str] = set()  # calls whose results wait

    def __contains__(self, call_id: str) -> bool:
        """Whether the stream has the call's result, or the server for it."""
        return call_id in self.results or call_id in self._waiting

    def sent(self, frame: ToolResult | Inject) -> None:
        self._sent.append(frame)
        if isinstance(frame, ToolResult):
            self.doubtful.discard(frame.call_id)

    def refused(self, frame: Frame) -> None:
        self._sent = [one for one in self._sent if one is not frame]

    def receive(self, event: Injected, text_length: int) -> None:
        """Where it answers nobody, it is of results that waited for the end of a turn."""
        frame = next((one for one in self._sent if event.ref is not None and one.ref == event.ref), None)
        if frame is not None:
            self._sent.remove(frame)
        elif event.ref is not None:
            return
        place = Place(event.index, text_length)
        if isinstance(frame, Inject):
            messages = frame.messages or []
            self._waiting -= {message.tool_call_id for message in messages}  # those calls have a result now
            self.turns.append((place, messages))
            return
        if frame is not None:
            self._waiting.add(frame.call_id)
        if event.count:
            self.results |= dict.fromkeys(sorted(self._waiting), place)
            self._waiting.clear()

    def rewind(self, index: int, calls: Iterable[str]) -> None:
        """Output from `index` on is void; these calls are left, and whole."""
        left = set(calls)
        stood = self.results.items()
        self.results = {call: place for call, place in stood if place.index <= index and call in left}
        self.turns = [(place, messages) for place, messages in self.turns if place.index <= index]
        self._waiting &= left

    def miss(self, until: int) -> None:
        """What has happened is not known, but that what stood before this token stands."""
        self.doubtful = {call_id for call_id, place in self.results.items() if place.index > until}

    def inherit(self, parent: Told, at: int) -> None:
        """Of a fork: it has what stood there."""
        self.results |= {call: place for call, place in parent.results.items() if place.index <= at}
        self.turns += [(place, messages) for place, messages in parent.turns if place.index <= at]
