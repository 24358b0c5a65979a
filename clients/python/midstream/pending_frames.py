"""Pending frames: those that wait for their answers, and what to do with each after a reconnect. Pure.

Knows no stream and no socket: a connection is whatever a frame was last sent on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from midstream.errors import ConnectionLost
from midstream.protocol import Adjust, Cancel, Event, Frame, Pause, Resume

ReconnectAction = Literal["wait", "resend", "fail"]


@dataclass(eq=False)
class PendingFrame:
    """A frame that waits for its answer: an event of this kind with the frame's ref, or an error."""

    frame: Frame
    answer: type[Event]
    future: asyncio.Future[Event]
    sent_on: object | None = None  # the last connection that it was queued on

    @property
    def request_id(self) -> str | None:
        return getattr(self.frame, "request_id", None)

    def reconnect_action(
        self, connection: object, pending_refs: Collection[str], *, answers_lost: bool
    ) -> ReconnectAction:
        """What to do when its stream is attached to a new connection, and no replay has answered it.

        `pending_refs` are those that the server has and will answer. Whether it received any other can be
        seen from the replay, or from the answers of a snapshot: what is not there was not received. Where
        those may not be all, only what is idempotent can be sent again.
        """
        if self.sent_on is connection or self.frame.ref in pending_refs:
            return "wait"
        if answers_lost and self.sent_on is not None and not idempotent(self.frame):
            return "fail"
        return "resend"

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def idempotent(frame: Frame) -> bool:
    """Whether doing it twice is the same as doing it once."""
    return isinstance(frame, Pause | Resume | Cancel) or (isinstance(frame, Adjust) and frame.at is None)


def unknown_outcome(pending: PendingFrame) -> ConnectionLost:
    kind = type(pending.frame).__name__.lower()
    return ConnectionLost(
        f"the connection was lost before `{kind}` was answered: its outcome is not known; the stream goes on",
        code=None,
        retryable=False,
    )
