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
from realtime.hub.observers import Begun, Cause, Retry, Watcher
from realtime.stream.stream import Stream

EVERY_STEPS = 16  # of a stream; the first is always among them

_propagator = TraceContextTextMapPropagator()


class Life(Struct):
    stream: Stream
    span: Span
    context: Context  # for its children
    prefill: Span | None = None
    steps: int = 0

    def end_prefill(self, at_ns: int | None = None) -> None:
        if self.prefill is not None:
            self.prefill.end(at_ns)
            self.prefill = None


class Traces(Watcher):
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._block = 1
        self._lives: dict[int, Life] = {}
        self._emitting: list[Life] = []
        self._heard_ns = 0

    def engine_begun(self, hello: api.Hello) -> None:
        self._block = hello.block

    def engine_lost(self) -> None:
        for life in self._lives.values():
            life.span.add_event("engine lost")
            life.end_prefill()

    def started(self, stream: Stream, begun: Begun, now: float) -> None:
        carrier = {} if begun.traceparent is None else {"traceparent": begun.traceparent}
        attributes: dict[str, str | int] = {
            "request_id": stream.request_id,
            "tenant": begun.tenant,
            "model": begun.model,
            "route": begun.route,
            "prompt_tokens": stream.prompt_tokens,
        }
        span = self._tracer.start_span(
            "stream", _propagator.extract(carrier, Context()), SpanKind.SERVER, attributes
        )
        if span.is_recording():
            self._lives[stream.number] = Life(stream, span, set_span_in_context(span, Context()))

    def stepped(self, output: api.StepOutput, now: float) -> None:
        if not self._lives:
            return
        self._heard_ns = time.time_ns()
        began_ns = self._heard_ns - int(output.stats.step_s * 1e9)
        for news in output.news:
            life = self._lives.get(news.stream)
            if life is not None:
                self._moved(life, news, output.stats, began_ns)

    def passed_on(self, output: api.StepOutput) -> None:
        emitting, self._emitting = self._emitting, []
        for life in emitting:
            self._tracer.start_span("emit", life.context, start_time=self._heard_ns).end()

    def acted(self, stream: Stream, kind: str, steps: int, seconds: float) -> None:
        self._note(stream, kind, steps=steps)

    def retried(self, stream: Stream, reason: Retry) -> None:
        self._note(stream, f"retry: {reason}")

    def left(self, stream: Stream, cause: Cause) -> None:
        self._note(stream, f"disconnected: {cause}")

    def finished(self, stream: Stream, now: float) -> None:
        life = self._lives.pop(stream.number, None)
        if life is None:
            return
        assert stream.final is not None
        life.end_prefill()
        life.span.set_attributes(
            {
                "finish_reason": stream.final.finish_reason,
                "output_tokens": stream.final.usage.completion_tokens,
                "discarded_tokens": stream.final.usage.discarded_tokens,
            }
        )
        if stream.final.finish_reason == "error":
            life.span.set_status(Status(StatusCode.ERROR))
        life.span.end()

    def _note(self, stream: Stream, what: str, **attributes: int) -> None:
        life = self._lives.get(stream.number)
        if life is not None:
            life.span.add_event(what, attributes)

    def _moved(self, life: Life, news: api.News, stats: api.Stats, began_ns: int) -> None:
        if news.admitted is not None:
            life.prefill = self._tracer.start_span("prefill", life.context, start_time=began_ns)
            life.prefill.set_attribute("cached_tokens", news.admitted)
        if not news.tokens:
            return
        if life.prefill is not None:
            life.prefill.set_attributes(self._attributes(life, news, stats))
            life.end_prefill(self._heard_ns)
            self._emitting.append(life)
            return
        if life.steps % EVERY_STEPS == 0:
            span = self._tracer.start_span("decode_step", life.context, start_time=began_ns)
            span.set_attributes(self._attributes(life, news, stats))
            span.end(self._heard_ns)
            self._emitting.append(life)
        life.steps += 1

    def _attributes(self, life: Life, news: api.News, stats: api.Stats) -> dict[str, int | float]:
        """Of the step: the rows that decoded beside it, its own length and blocks, and the model's time."""
        output = life.stream.output
        length = life.stream.prompt_tokens + output.injected() + news.index + len(news.tokens)
        return {
            "batch_size": stats.decode_rows + stats.prefill_rows,
            "seq_len": length,
            "kv_blocks": -(-length // self._block),
            "kernel_ms": round(stats.forward_s * 1000, 3),
        }
