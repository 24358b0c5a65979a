"""The interface of observers: metrics, the logs of requests and refusals, traces. They are told, and change
nothing.

What they are told of is moments in the life of a stream, steps, and refusals; nobody's text is among it. Each
observer takes what it wants: the others are empty.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from engine import api
from midstream.protocol import GuardAction
from realtime.hub.placement import Placement
from realtime.stream.stream import Stream

Route = Literal["websocket", "http"]
ROUTES: tuple[Route, ...] = ("websocket", "http")

RetryReason = Literal["attach", "start", "engine"]  # somebody came back, asked the same again; another engine
RETRY_REASONS: tuple[RetryReason, ...] = ("attach", "start", "engine")

DisconnectCause = Literal["closed", "lost", "slow", "refused", "replaced", "revoked", "failed"]
DISCONNECT_CAUSES: tuple[DisconnectCause, ...] = (
    "closed",
    "lost",
    "slow",
    "refused",
    "replaced",
    "revoked",
    "failed",
)


class Caller(Struct, frozen=True):
    """Who asks for something, and where: as much of it as is known."""

    route: Route
    endpoint: str = ""  # the pattern of its path
    address: str = ""
    tenant: str = ""
    key: str | None = None  # its name, where the server has keys


class StreamOrigin(Struct, frozen=True):
    """Where a stream came from."""

    tenant: str
    model: str
    route: Route
    traceparent: str | None = None
    key: str | None = None  # the name of the key that it was started with


class Observer:
    """Takes no notice of anything. All of these must be quick."""

    def engine_ready(self, engine: int, hello: api.Hello) -> None:
        """Engines are told apart by numbers; who takes a lost one's place has its number."""

    def engine_lost(self, engine: int, *, dismissed: bool = False) -> None:
        """`dismissed`: it was wanted no more, and none is to take its place."""

    def placed(self, placement: Placement) -> None:
        """So the fleet is now, where it is on many machines."""

    def started(self, stream: Stream, origin: StreamOrigin, now: float) -> None: ...

    def stepped(self, engine: int, output: api.StepOutput, now: float) -> None:
        """A step's news are here, and no stream has heard of them yet."""

    def delivered(self, engine: int, output: api.StepOutput) -> None:
        """The step's news have been given to whoever listens."""

    def steered(self, stream: Stream, kind: str, steps: int, seconds: float) -> None:
        """A frame took effect, so long after it came."""

    def guarded(self, stream: Stream, action: GuardAction) -> None:
        """A guard of its has acted."""

    def granted(self, stream: Stream) -> None:
        """It had used up its credit, and has been given more."""

    def refused(self, code: str, caller: Caller) -> None:
        """Somebody was told no."""

    def retried(self, stream: Stream, reason: RetryReason) -> None: ...

    def detached(self, stream: Stream, cause: DisconnectCause) -> None:
        """It has not ended, and nobody listens any more."""

    def discarded(self, tokens: int) -> None:
        """They were decoded for a stream that had ended."""

    def moved(self, stream: Stream) -> None:
        """It is another gateway's from now on, which will tell of its end."""

    def finished(self, stream: Stream, now: float) -> None: ...


class Observers(Observer):
    """Several as one."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def engine_ready(self, engine: int, hello: api.Hello) -> None:
        for observer in self._observers:
            observer.engine_ready(engine, hello)

    def engine_lost(self, engine: int, *, dismissed: bool = False) -> None:
        for observer in self._observers:
            observer.engine_lost(engine, dismissed=dismissed)

    def placed(self, placement: Placement) -> None:
        for observer in self._observers:
            observer.placed(placement)

    def started(self, stream: Stream, origin: StreamOrigin, now: float) -> None:
        for observer in self._observers:
            observer.started(stream, origin, now)

    def stepped(self, engine: int, output: api.StepOutput, now: float) -> None:
        for observer in self._observers:
            observer.stepped(engine, output, now)

    def delivered(self, engine: int, output: api.StepOutput) -> None:
        for observer in self._observers:
            observer.delivered(engine, output)

    def steered(self, stream: Stream, kind: str, steps: int, seconds: float) -> None:
        for observer in self._observers:
            observer.steered(stream, kind, steps, seconds)

    def guarded(self, stream: Stream, action: GuardAction) -> None:
        for observer in self._observers:
            observer.guarded(stream, action)

    def granted(self, stream: Stream) -> None:
        for observer in self._observers:
            observer.granted(stream)

    def refused(self, code: str, caller: Caller) -> None:
        for observer in self._observers:
            observer.refused(code, caller)

    def retried(self, stream: Stream, reason: RetryReason) -> None:
        for observer in self._observers:
            observer.retried(stream, reason)

    def detached(self, stream: Stream, cause: DisconnectCause) -> None:
        for observer in self._observers:
            observer.detached(stream, cause)

    def discarded(self, tokens: int) -> None:
        for observer in self._observers:
            observer.discarded(tokens)

    def moved(self, stream: Stream) -> None:
        for observer in self._observers:
            observer.moved(stream)

    def finished(self, stream: Stream, now: float) -> None:
        for observer in self._observers:
            observer.finished(stream, now)
