"""Traces: a span for each request, and below it its prefill and some of its steps.

It knows OpenTelemetry's interface, and no exporter: whoever gives it a tracer decides where spans go, and
which traces are kept. It is imported only where traces are wanted.
"""

from __future__ import annotations

import time

from msgspec import Struct
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from engine import api
from realtime.hub.observers import DisconnectCause, Observer, RetryReason, StreamOrigin
from realtime.stream.stream import Stream

EVERY_STEPS = 16  # of a stream; the first is always among them

_propagator = TraceContextTextMapPropagator()


class TrackedStream(Struct):
    stream: Stream
    span: Span
    context: Context  # for its children
    prefill: Span | None = None
    steps: int = 0
    engine: int | None = None  # whose news it had last

    def end_prefill(self, at_ns: int | None = None) -> None:
        if self.prefill is not None:
            self.prefill.end(at_ns)
            self.prefill = None


class Traces(Observer):
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._block = 1
        self._tracked: dict[int, TrackedStream] = {}
        self._emitting: list[TrackedStream] = []
        self._heard_ns = 0

    def engine_ready(self, engine: int, hello: api.Hello) -> None:
        self._block = hello.block

    def engine_lost(self, engine: int, *, dismissed: bool = False) -> None:
        for tracked_stream in self._tracked.values():
            if tracked_stream.engine == engine:
                tracked_stream.span.add_event("engine lost")
                tracked_stream.end_prefill()

    def started(self, stream: Stream, origin: StreamOrigin, now: float) -> None:
        carrier = {} if origin.traceparent is None else {"traceparent": origin.traceparent}
        attributes: dict[str, str | int] = {
            "request_id": stream.request_id,
            "tenant": origin.tenant,
            "model": origin.model,
            "route": origin.route,
            "prompt_tokens": stream.prompt_tokens,
        }
        span = self._tracer.start_span(
            "stream", _propagator.extract(carrier, Context()), SpanKind.SERVER, attributes
        )
        if span.is_recording():
            self._tracked[stream.number] = TrackedStream(stream, span, set_span_in_context(span, Context()))

    def stepped(self, engine: int, output: api.StepOutput, now: float) -> None:
        if not self._tracked:
            return
        self._heard_ns = time.time_ns()
        began_ns = self._heard_ns - int(output.stats.step_s * 1e9)
        for news in output.news:
            tracked_stream = self._tracked.get(news.stream)
            if tracked_stream is not None:
                tracked_stream.engine = engine
                self._moved(tracked_stream, news, output.stats, began_ns)

    def delivered(self, engine: int, output: api.StepOutput) -> None:
        emitting, self._emitting = self._emitting, []
        for tracked_stream in emitting:
            self._tracer.start_span("emit", tracked_stream.context, start_time=self._heard_ns).end()

    def steered(self, stream: Stream, kind: str, steps: int, seconds: float) -> None:
        self._note(stream, kind, steps=steps)

    def retried(self, stream: Stream, reason: RetryReason) -> None:
        self._note(stream, f"retry: {reason}")

    def detached(self, stream: Stream, cause: DisconnectCause) -> None:
        self._note(stream, f"disconnected: {cause}")

    def moved(self, stream: Stream) -> None:
        tracked_stream = self._tracked.pop(stream.number, None)
        if tracked_stream is not None:
            tracked_stream.end_prefill()
            tracked_stream.span.add_event("moved to another gateway")
            tracked_stream.span.end()

    def finished(self, stream: Stream, now: float) -> None:
        tracked_stream = self._tracked.pop(stream.number, None)
        if tracked_stream is None:
            return
        assert stream.final is not None
        tracked_stream.end_prefill()
        tracked_stream.span.set_attributes(
            {
                "finish_reason": stream.final.finish_reason,
                "output_tokens": stream.final.usage.completion_tokens,
                "discarded_tokens": stream.final.usage.discarded_tokens,
            }
        )
        if stream.final.finish_reason == "error":
            tracked_stream.span.set_status(Status(StatusCode.ERROR))
        tracked_stream.span.end()

    def _note(self, stream: Stream, what: str, **attributes: int) -> None:
        tracked_stream = self._tracked.get(stream.number)
        if tracked_stream is not None:
            tracked_stream.span.add_event(what, attributes)

    def _moved(self, tracked_stream: TrackedStream, news: api.News, stats: api.Stats, began_ns: int) -> None:
        if news.admitted is not None:
            tracked_stream.prefill = self._tracer.start_span(
                "prefill", tracked_stream.context, start_time=began_ns
            )
            tracked_stream.prefill.set_attribute("cached_tokens", news.admitted)
        if not news.tokens:
            return
        if tracked_stream.prefill is not None:
            tracked_stream.prefill.set_attributes(self._attributes(tracked_stream, news, stats))
            tracked_stream.end_prefill(self._heard_ns)
            self._emitting.append(tracked_stream)
            return
        if tracked_stream.steps % EVERY_STEPS == 0:
            span = self._tracer.start_span("decode_step", tracked_stream.context, start_time=began_ns)
            span.set_attributes(self._attributes(tracked_stream, news, stats))
            span.end(self._heard_ns)
            self._emitting.append(tracked_stream)
        tracked_stream.steps += 1

    def _attributes(
        self, tracked_stream: TrackedStream, news: api.News, stats: api.Stats
    ) -> dict[str, int | float]:
        """Of the step: the rows that decoded beside it, its own length and blocks, and the model's time."""
        output = tracked_stream.stream.output
        length = tracked_stream.stream.prompt_tokens + output.injected() + news.index + len(news.tokens)
        return {
            "batch_size": stats.decode_rows + stats.prefill_rows,
            "seq_len": length,
            "kv_blocks": -(-length // self._block),
            "kernel_ms": round(stats.forward_s * 1000, 3),
        }
