"""The export of traces: by OTLP over HTTP, to wherever OpenTelemetry's own environment variables say.

The only module that imports OpenTelemetry's SDK, and only where traces are wanted.
"""

from __future__ import annotations

import os
from threading import Thread
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from realtime.observability.traces import Traces

LAST_WORDS_S = 3.0  # that a collector has to take what is left, when the server ends
# OpenTelemetry's variables that name a session of somebody else's making.
OTHER_SESSIONS = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
)


class ExportedTraces(Traces):
    """Traces whose spans are sent away, in the background."""

    def __init__(self) -> None:
        name = os.environ.get("OTEL_SERVICE_NAME", "midstream")
        resource = Resource.create({"service.name": name})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        session = None if any(map(os.environ.get, OTHER_SESSIONS)) else StatusAlone()
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(session=session)))
        super().__init__(self._provider.get_tracer("midstream"))

    def close(self) -> None:
        """Send what is left, if somebody takes it. A collector that answers byte after byte keeps the
        exporter for ever, whatever that is told: then its thread is left behind."""
        sending = Thread(target=self._provider.shutdown, name="last traces", daemon=True)
        sending.start()
        sending.join(LAST_WORDS_S)


class StatusAlone(requests.Session):
    """Of an answer nothing is read behind its headers: there may be no end to it."""

    def request(self, *arguments: Any, **options: Any) -> requests.Response:
        with super().request(*arguments, **options | {"stream": True}) as response:
            return response
