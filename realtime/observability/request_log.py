"""The request log: one line when a request has ended, that says what it was, what it took and how it ended.

Never what it said: neither its prompt nor its output, and not the stop string that ended it.
"""

from __future__ import annotations

from collections import Counter

import structlog
from msgspec import Struct, field

from realtime.hub.observers import DisconnectCause, Observer, RetryReason, StreamOrigin
from realtime.stream.stream import Stream


class TrackedStream(Struct):
    origin: StreamOrigin
    acts: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    disconnects: int = 0


class RequestLog(Observer):
    def __init__(self) -> None:
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger("midstream.requests")
        self._tracked: dict[int, TrackedStream] = {}

    def started(self, stream: Stream, origin: StreamOrigin, now: float) -> None:
        self._tracked[stream.number] = TrackedStream(origin)

    def steered(self, stream: Stream, kind: str, steps: int, seconds: float) -> None:
        if stream.number in self._tracked:  # else it acted on its end
            self._tracked[stream.number].acts[kind] += 1

    def retried(self, stream: Stream, reason: RetryReason) -> None:
        if stream.number in self._tracked:  # else it has ended, and somebody wants to hear how
            self._tracked[stream.number].retries += 1

    def detached(self, stream: Stream, cause: DisconnectCause) -> None:
        self._tracked[stream.number].disconnects += 1

    def moved(self, stream: Stream) -> None:
        del self._tracked[stream.number]

    def finished(self, stream: Stream, now: float) -> None:
        assert stream.final is not None
        tracked_stream = self._tracked.pop(stream.number)
        usage, timing = stream.final.usage, stream.final.timing
        self._log.info(
            "request",
            request_id=stream.request_id,
            tenant=tracked_stream.origin.tenant,
            key=tracked_stream.origin.key,
            model=tracked_stream.origin.model,
            route=tracked_stream.origin.route,
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
            pauses=tracked_stream.acts["pause"],
            adjusts=tracked_stream.acts["adjust"],
            injects=tracked_stream.acts["inject"],
            rewinds=tracked_stream.acts["rewind"],
            disconnects=tracked_stream.disconnects,
            retries=tracked_stream.retries,
        )
