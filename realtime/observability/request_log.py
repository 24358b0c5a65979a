"""One line of the log for each request, when it has ended: what it was, what it took and how it ended.

Never what it said: neither its prompt nor its output, and not the stop string that ended it.
"""

from __future__ import annotations

from collections import Counter

import structlog
from msgspec import Struct, field

from realtime.hub.observers import Begun, Cause, Retry, Watcher
from realtime.stream.stream import Stream


class Life(Struct):
    begun: Begun
    acts: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    disconnects: int = 0


class RequestLog(Watcher):
    def __init__(self) -> None:
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger("midstream.requests")
        self._lives: dict[int, Life] = {}

    def started(self, stream: Stream, begun: Begun, now: float) -> None:
        self._lives[stream.number] = Life(begun)

    def acted(self, stream: Stream, kind: str, steps: int, seconds: float) -> None:
        if stream.number in self._lives:  # else it acted on its end
            self._lives[stream.number].acts[kind] += 1

    def retried(self, stream: Stream, reason: Retry) -> None:
        if stream.number in self._lives:  # else it has ended, and somebody wants to hear how
            self._lives[stream.number].retries += 1

    def left(self, stream: Stream, cause: Cause) -> None:
        self._lives[stream.number].disconnects += 1

    def finished(self, stream: Stream, now: float) -> None:
        assert stream.final is not None
        life = self._lives.pop(stream.number)
        usage, timing = stream.final.usage, stream.final.timing
        self._log.info(
            "request",
            request_id=stream.request_id,
            tenant=life.begun.tenant,
            model=life.begun.model,
            route=life.begun.route,
            finish_reason=stream.final.finish_reason,
            tokens_in=usage.prompt_tokens + usage.injected_tokens,
            tokens_cached=usage.cached_tokens,
            tokens_out=usage.completion_tokens,
            wasted_tokens=usage.discarded_tokens,
            queue_ms=timing.queue_ms,
            ttft_ms=timing.ttft_ms,
            total_ms=timing.total_ms,
            paused_ms=timing.paused_ms,
            tokens_per_s=timing.tokens_per_s,
            pauses=life.acts["pause"],
            adjusts=life.acts["adjust"],
            injects=life.acts["inject"],
            rewinds=life.acts["rewind"],
            disconnects=life.disconnects,
            retries=life.retries,
        )
