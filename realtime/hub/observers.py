"""Those who watch streams: counters, the log of requests, traces. They are told, and change nothing.

What they are told of is moments in the life of a stream, and steps; nobody's text is among it. Each watcher
takes what it wants: the others are empty.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from engine import api
from realtime.stream.stream import Stream

Route = Literal["websocket", "http"]
ROUTES: tuple[Route, ...] = ("websocket", "http")

Retry = Literal["attach", "start", "engine"]  # somebody came back, asked the same again; another engine
RETRIES: tuple[Retry, ...] = ("attach", "start", "engine")

Cause = Literal["closed", "lost", "slow", "refused", "replaced", "revoked", "failed"]
CAUSES: tuple[Cause, ...] = ("closed", "lost", "slow", "refused", "replaced", "revoked", "failed")


class Begun(Struct, frozen=True):
    """Where a stream came from."""

    tenant: str
    model: str
    route: Route
    traceparent: str | None = None


class Watcher:
    """Takes no notice of anything. All of these must be quick."""

    def engine_begun(self, hello: api.Hello) -> None: ...

    def engine_lost(self) -> None: ...

    def started(self, stream: Stream, begun: Begun, now: float) -> None: ...

    def stepped(self, output: api.StepOutput, now: float) -> None:
        """A step's news are here, and no stream has heard of them yet."""

    def passed_on(self, output: api.StepOutput) -> None:
        """The step's news have been given to whoever listens."""

    def acted(self, stream: Stream, kind: str, steps: int, seconds: float) -> None:
        """A frame took effect, so long after it came."""

    def freed(self, stream: Stream) -> None:
        """It had used up its credit, and has been given more."""

    def retried(self, stream: Stream, reason: Retry) -> None: ...

    def left(self, stream: Stream, cause: Cause) -> None:
        """It has not ended, and nobody listens any more."""

    def discarded(self, tokens: int) -> None:
        """They were decoded for a stream that had ended."""

    def finished(self, stream: Stream, now: float) -> None: ...


class Watchers(Watcher):
    """Several as one."""

    def __init__(self, *watchers: Watcher) -> None:
        self._watchers = watchers

    def engine_begun(self, hello: api.Hello) -> None:
        for watcher in self._watchers:
            watcher.engine_begun(hello)

    def engine_lost(self) -> None:
        for watcher in self._watchers:
            watcher.engine_lost()

    def started(self, stream: Stream, begun: Begun, now: float) -> None:
        for watcher in self._watchers:
            watcher.started(stream, begun, now)

    def stepped(self, output: api.StepOutput, now: float) -> None:
        for watcher in self._watchers:
            watcher.stepped(output, now)

    def passed_on(self, output: api.StepOutput) -> None:
        for watcher in self._watchers:
            watcher.passed_on(output)

    def acted(self, stream: Stream, kind: str, steps: int, seconds: float) -> None:
        for watcher in self._watchers:
            watcher.acted(stream, kind, steps, seconds)

    def freed(self, stream: Stream) -> None:
        for watcher in self._watchers:
            watcher.freed(stream)

    def retried(self, stream: Stream, reason: Retry) -> None:
        for watcher in self._watchers:
            watcher.retried(stream, reason)

    def left(self, stream: Stream, cause: Cause) -> None:
        for watcher in self._watchers:
            watcher.left(stream, cause)

    def discarded(self, tokens: int) -> None:
        for watcher in self._watchers:
            watcher.discarded(tokens)

    def finished(self, stream: Stream, now: float) -> None:
        for watcher in self._watchers:
            watcher.finished(stream, now)
