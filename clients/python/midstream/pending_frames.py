"""Frames that wait for their answers, and what becomes of them when a connection is lost. Pure.

Knows no stream and no socket: a connection is whatever a frame was last said on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from midstream.errors import ConnectionLost
from midstream.protocol import Adjust, Cancel, Event, Frame, Pause, Resume

Fate = Literal["underway", "again", "unknown"]


@dataclass(eq=False)
class Asked:
    """A frame that waits for its answer: an event of this kind with the frame's ref, or an error."""

    frame: Frame
    answer: type[Event]
    future: asyncio.Future[Event]
    said_on: object | None = None  # the connection that it was last put in line for

    @property
    def request_id(self) -> str | None:
        return getattr(self.frame, "request_id", None)

    def fate(self, connection: object, pending: Collection[str], *, retold: bool) -> Fate:
        """What becomes of it when its stream has come to a new connection, and no replay has answered it.

        `pending` are the refs that the server has and will answer. Whether it heard any other can be seen
        from the replay: what is not in it was not heard. After a snapshot, which has no answers in it
        (`retold`), only what does no harm twice can be said again.
        """
        if self.said_on is connection or self.frame.ref in pending:
            return "underway"
        if retold and self.said_on is not None and not repeatable(self.frame):
            return "unknown"
        return "again"

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def repeatable(frame: Frame) -> bool:
    """Whether doing it twice is the same as doing it once."""
    return isinstance(frame, Pause | Resume | Cancel) or (isinstance(frame, Adjust) and frame.at is None)


def unknown_outcome(asked: Asked) -> ConnectionLost:
    kind = type(asked.frame).__name__.lower()
    return ConnectionLost(
        f"the connection was lost before `{kind}` was answered: its outcome is not known; the stream goes on",
        code=None,
        retryable=False,
    )
