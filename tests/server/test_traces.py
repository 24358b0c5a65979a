"""Traces of a real server, as they arrive by OTLP over HTTP at whoever collects them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.server.independent_client import client_of
from tests.server.server_process import PATIENCE_S, Served

Serve = Callable[..., Served]
CANARY = "CANARY"
TRACES = ["4bf92f3577b34da6a3ce929d0e0e473" + end for end in "678"]
PARENT = "00f067aa0ba902b7"


class Collector:
    """Takes in what is sent to it by OTLP."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.server = HTTPServer(("127.0.0.1", 0), self._asked())
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def _asked(self) -> type[BaseHTTPRequestHandler]:
        bodies = self.bodies

        class Asked(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the library's name for it
                pass

        return Asked

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def services(self) -> set[str]:
        return {
            attribute.value.string_value
            for body in self.bodies
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for attribute in resource.resource.attributes
            if attribute.key == "service.name"
        }

    def of(self, trace: str) -> list[Span]:
        return [
            span
            for body in self.bodies
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
            if span.trace_id.hex() == trace
        ]

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def traceparent(trace: str) -> str:
    return f"00-{trace}-{PARENT}-01"


async def test_every_way_to_name_a_trace_leads_to_one_that_arrives_whole(
    serve: Serve, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    served = serve("--traces", "on")
    by_field, by_header, by_http = TRACES
    params = {"ignore_eos": True, "max_tokens": 20}
    async with client_of(served.url, additional_headers={"traceparent": traceparent(by_header)}) as client:
        named = await client.start(
            "field", params=params, traceparent=traceparent(by_field), prompt=f"{CANARY} says"
        )
        await named.rest()
        await (await client.start("header", params=params)).rest()
    async with httpx2.AsyncClient(base_url=served.http, timeout=PATIENCE_S) as http:
        answer = await http.post(
            "/v1/completions",
            json={"model": "toy", "prompt": "Once", "max_tokens": 20},
            headers={"traceparent": traceparent(by_http)},
        )
    assert answer.status_code == 200
    served.tell()
    assert served.ended() == 0
    for trace in TRACES:
        spans = collector.of(trace)
        assert {span.name for span in spans} == {"stream", "prefill", "decode_step", "emit"}
        (root,) = [span for span in spans if span.name == "stream"]
        assert root.parent_span_id.hex() == PARENT
        assert {span.parent_span_id for span in spans if span is not root} == {root.span_id}
        (prefill,) = [span for span in spans if span.name == "prefill"]
        told = {attribute.key for attribute in prefill.attributes}
        assert told == {"cached_tokens", "batch_size", "seq_len", "kv_blocks", "kernel_ms"}
    assert collector.services() == {"midstream"}
    assert not any(CANARY.encode() in body for body in collector.bodies)


async def test_a_collector_that_is_not_there_costs_no_stream_anything(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    served = serve("--traces", "on")
    async with client_of(served.url) as client:
        stream = await client.start("alone", params={"ignore_eos": True, "max_tokens": 20})
        assert (await stream.rest())["finish_reason"] == "length"
    served.tell()
    assert served.ended() == 0
