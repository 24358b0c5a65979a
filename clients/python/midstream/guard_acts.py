"""What guards have done to a stream, each act with the event in which it takes effect. Events in; pure."""

from __future__ import annotations

from midstream.protocol import Guarded, Paused, Rewound, StreamEvent


class GuardActs:
    def __init__(self) -> None:
        self.pending: Guarded | None = None  # it was told, and is to take effect

    def receive(self, event: StreamEvent) -> Guarded | None:
        """The act that takes effect with this event. What a guard only tells is none."""
        match event, self.pending:
            case Guarded(do="rewind" | "pause" | "finish"), _:
                self.pending = event
            case (Rewound(ref=None), Guarded(do="rewind" | "finish")) | (Paused(reason="guard"), _):
                act, self.pending = self.pending, None
                return act
        return None
