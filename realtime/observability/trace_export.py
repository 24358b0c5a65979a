"""The export of traces: by OTLP over HTTP, to wherever OpenTelemetry's own environment variables say.

The only module that imports OpenTelemetry's SDK, and only where traces are wanted.
"""

from __future__ import annotations

import os
from threading import Timer

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from realtime.observability.traces import Traces

LAST_WORDS_S = 3.0  # that a collector has to take what is left, when the server ends


class ExportedTraces(Traces):
    """Traces whose spans are sent away, in the background."""

    def __init__(self) -> None:
        name = os.environ.get("OTEL_SERVICE_NAME", "midstream")
        self._provider = TracerProvider(resource=Resource.create({"service.name": name}))
        self._exporter = OTLPSpanExporter()
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        super().__init__(self._provider.get_tracer("midstream"))

    def close(self) -> None:
        """Send what is left, if somebody takes it: the exporter alone would try for as long as it may."""
        giving_up = Timer(LAST_WORDS_S, self._exporter.shutdown)
        giving_up.start()
        self._provider.shutdown()
        giving_up.cancel()
