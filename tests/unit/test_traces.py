"""Spans of whole lives, in OpenTelemetry's own memory."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from queue import Queue
from threading import Event, Thread
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import StatusCode

from engine import api
from midstream import protocol
from midstream.protocol import Credit, Params
from realtime.__main__ import _traces
from realtime.bind import StartupError
from realtime.observability import trace_export
from realtime.observability.trace_export import OTHER_SESSIONS, ExportedTraces
from realtime.observability.traces import EVERY_STEPS, Traces
from tests.fakes.checking_client import Reader
from tests.fakes.simulated_client import SIZE, endless, rest, run_out, start
from tests.fakes.simulated_server import EngineSize, SimulatedServer

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Traced:
    """A server whose streams are traced."""

    def __init__(self, sampler: Sampler = ALWAYS_ON, size: EngineSize = SIZE) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.traces = Traces(provider.get_tracer("test"))
        self.traces.engine_ready(
            0,
            api.Hello("toy", "", 1, 1, [], kv_tokens=1, block=size.block, device="", dtype="", attention=""),
        )
        self.server = SimulatedServer(size, observer=self.traces)
        self.reader = Reader(self.server)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._kept.get_finished_spans() if span.name == name]

    def span(self, name: str = "stream") -> ReadableSpan:
        (span,) = self.spans(name)
        return span

    def run(self, tokens: int, **fields: Any) -> None:
        params = Params(max_tokens=tokens, ignore_eos=True)
        self.reader.send(start(params=params, credit=Credit(limit=tokens), **fields))
        run_out(self.server, self.reader.accounts[-1])


@pytest.fixture
def traced() -> Traced:
    return Traced()


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def test_a_stream_is_a_span_that_says_whose_it_is_and_how_it_ended(traced: Traced) -> None:
    traced.run(5)
    assert attributes(traced.span()) == {
        "request_id": "a",
        "tenant": "tenant",
        "model": "toy",
        "route": "websocket",
        "prompt_tokens": len(traced.reader.accounts[0].prompt),
        "finish_reason": "length",
        "output_tokens": 5,
        "discarded_tokens": 0,
    }


def test_below_it_are_its_prefill_and_some_of_its_steps_and_what_was_passed_on_of_them(
    traced: Traced,
) -> None:
    tokens = 2 * EVERY_STEPS + 2
    traced.run(tokens)
    root = traced.span()
    prefill, steps, emits = traced.span("prefill"), traced.spans("decode_step"), traced.spans("emit")
    assert len(steps) == 3, "the first of them, and each sixteenth"
    assert len(emits) == 1 + len(steps)
    for span in (prefill, *steps, *emits):
        assert span.parent is not None
        assert root.context is not None
        assert span.parent.span_id == root.context.span_id
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.end_time >= span.start_time
    assert attributes(prefill)["cached_tokens"] == 0
    prompt = len(traced.reader.accounts[0].prompt)
    assert [attributes(span)["seq_len"] for span in (prefill, *steps)] == [
        prompt + 1 + decoded for decoded in (0, 1, 1 + EVERY_STEPS, 1 + 2 * EVERY_STEPS)
    ]
    for span in (prefill, *steps):
        told = attributes(span)
        assert told["batch_size"] == 1
        length = told["seq_len"]
        assert isinstance(length, int)
        assert told["kv_blocks"] == -(-length // SIZE.block)
        kernel_ms = told["kernel_ms"]
        assert isinstance(kernel_ms, float)
        assert kernel_ms >= 0


def test_it_is_part_of_the_trace_that_the_client_named(traced: Traced) -> None:
    traced.run(1, traceparent=f"00-{TRACE}-{PARENT}-01")
    span = traced.span()
    assert span.context is not None
    assert span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)


@pytest.mark.parametrize("nonsense", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01", "\x1b[2J"])
def test_what_names_no_trace_begins_one(traced: Traced, nonsense: str) -> None:
    traced.run(1, traceparent=nonsense)
    assert traced.span().parent is None


def test_what_the_client_keeps_no_trace_of_is_not_traced() -> None:
    traced = Traced(ParentBased(ALWAYS_ON))
    traced.run(20, traceparent=f"00-{TRACE}-{PARENT}-00")
    assert not traced.spans("stream") + traced.spans("prefill") + traced.spans("decode_step")


def test_steering_and_going_and_coming_stand_in_it(traced: Traced) -> None:
    traced.reader.send(endless(credit=Credit(limit=3), on_disconnect="continue"))
    rest(traced.server)
    traced.reader.send(protocol.Pause(request_id="a"))
    traced.server.tick()
    traced.reader.leave()
    other = Reader(traced.server)
    other.take_over(traced.reader, traced.reader.accounts[0])
    other.send(protocol.Cancel(request_id="a"))
    run_out(traced.server, other.accounts[0])
    names = [event.name for event in traced.span().events]
    assert names == ["pause", "disconnected: closed", "retry: attach", "cancel"]


def test_an_error_is_one_in_the_trace_too(traced: Traced) -> None:
    traced.reader.send(endless(credit=Credit(limit=3)))
    traced.server.hub.streams[0].fail("it failed", traced.server.clock())
    traced.server.hub.cancel_all()
    assert traced.span().status.status_code is StatusCode.ERROR


def test_of_an_engine_that_dies_in_a_prefill_no_span_is_left_open() -> None:
    traced = Traced(size=EngineSize(kv_tokens=4096, block=16, step_tokens=8))
    traced.reader.send(start(prompt=[5] * 40, params=Params(max_tokens=1, ignore_eos=True)))
    (stream,) = traced.server.hub.streams
    while stream.state == "queued":
        traced.server.tick()
    traced.traces.engine_lost(0)
    traced.server.kill_engine()
    traced.server.revive_engine()
    run_out(traced.server, traced.reader.accounts[0])
    assert len(traced.spans("prefill")) == 2
    assert "engine lost" in [event.name for event in traced.span().events]


def test_nothing_of_a_stream_that_has_ended_is_kept(traced: Traced) -> None:
    traced.run(3)
    assert not traced.traces._tracked
    assert not traced.traces._emitting


def test_where_no_traces_are_wanted_opentelemetry_is_not_even_loaded() -> None:
    asks = "import sys, realtime.__main__; print([name for name in sys.modules if 'opentelemetry' in name])"
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_where_opentelemetry_is_missing_the_server_says_what_to_install() -> None:
    asks = (
        "import sys; sys.modules['opentelemetry'] = None; from realtime.__main__ import main; "
        "sys.exit(main(['--model', 'toy', '--port', '0', '--traces', 'on']))"
    )
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "midstream: --traces on needs OpenTelemetry; in a clone of Midstream, install it with: "
        "pip install ./clients/python '.[otel]'\n"
    )


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1", "max_queue_size must be a positive integer"),
        (OTHER_SESSIONS[0], "none", "Requested component 'none' not found"),
    ],
)
def test_what_cannot_be_as_the_surroundings_say_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(StartupError, match=rf"OTEL_\* say: {why}"):
        _traces()


def test_so_is_what_opentelemetry_looks_at_when_it_is_loaded() -> None:
    asks = "from realtime.__main__ import main; main(['--model', 'toy', '--port', '0', '--traces', 'on'])"
    surroundings = os.environ | {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "-5"}
    done = subprocess.run(
        [sys.executable, "-c", asks], env=surroundings, capture_output=True, text=True, check=False
    )
    assert done.stderr.startswith("midstream: --traces on cannot be as its variables OTEL_* say: ")
    assert done.stderr.count("\n") == 1


def test_a_collector_that_answers_without_end_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its answer was kept in memory, and the exporter's thread was its for as long as it liked."""
    taken = Queue[int]()

    def answer(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
            for sent in range(64):
                connection.sendall(bytes(1 << 20))
                taken.put(sent)
        taken.put(-1)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        collector = Thread(target=answer, args=(listening,))
        collector.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{listening.getsockname()[1]}")
        traces = ExportedTraces()
        traces._tracer.start_span("x").end()
        traces._provider.force_flush()
        collector.join()
    assert 63 not in iter(taken.get, -1)
    traces.close()


def test_an_exporter_that_never_ends_is_waited_for_no_longer_than_it_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trace_export, "LAST_WORDS_S", 0.0)
    traces, ended, said = ExportedTraces(), Event(), list[str]()

    def shut_down() -> None:
        ended.wait(5)
        said.append("ended")

    monkeypatch.setattr(traces._provider, "shutdown", shut_down)
    traces.close()
    assert said == []
    ended.set()
