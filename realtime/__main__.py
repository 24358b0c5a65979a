"""`midstream serve`: the only place that wires. Options in, a running server out, and its orderly end."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from engine import api
from realtime.access.connection_limits import Crowd
from realtime.access.credentials import Credentials
from realtime.access.key_file import Unreadable
from realtime.access.keyring import Keyring
from realtime.access.revocation import watch
from realtime.app import Doors, application
from realtime.bind import Unable, listen, raise_descriptor_limit, welcome
from realtime.config import Options, parse
from realtime.engines.process_link import ProcessLink
from realtime.engines.supervisor import Connect, EngineFailed, Supervisor
from realtime.engines.thread_link import ThreadLink
from realtime.http.sse import Patience
from realtime.hub.hub import Hub
from realtime.hub.observers import Watchers
from realtime.observability import logs, loop_lag
from realtime.observability.listing import Listings
from realtime.observability.metrics import Metrics
from realtime.observability.request_log import RequestLog
from realtime.server import Server, let_finish
from realtime.tenants.allowance import EVERYTHING, Allowance
from realtime.tenants.quota import Gate
from realtime.transport import http_protocol, websocket_protocol
from realtime.websocket.connection import Limits

if TYPE_CHECKING:
    from realtime.observability.trace_export import Exported

log = logging.getLogger("midstream")

ACCEPTED_AT_ONCE = 64  # a crowd at the door holds up those inside for some ten milliseconds, and no longer

# A reader that is busy with what it has read answers no ping meanwhile. It is stalled, which costs nothing,
# and not gone.
PEER_SILENCE_S = 300.0


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(sys.argv[1:] if argv is None else argv, os.environ)
    logs.set_up(options.log_level, options.log_format)
    try:
        raise_descriptor_limit()
        with listen(options.host, options.port) as listening:
            asyncio.run(serve(options, listening))
    except Unable as problem:
        print(f"midstream: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


async def serve(options: Options, listening: socket.socket) -> None:
    metrics = Metrics() if options.metrics == "on" else None
    traces = _traces() if options.traces == "on" else None
    listings = Listings()
    watchers = Watchers(
        listings, RequestLog(), *(watcher for watcher in (metrics, traces) if watcher is not None)
    )
    supervisor = Supervisor(
        _connector(options),
        watchers,
        silence_s=options.engine_silence_s,
        spare=options.engine == "process" and options.engine_spare == "on",
    )
    keyring = _keyring(options)
    allowance = keyring.allowance if keyring else _everything
    hub = Hub(
        supervisor.send,
        watchers,
        window=options.auto_credit_window,
        max_streams=options.max_streams,
        gate=Gate(allowance),
    )
    supervisor.hub = hub
    crowd = Crowd(options.max_connections, options.connections_per_address or None, allowance)
    doors = Doors(
        hub,
        supervisor,
        metrics,
        _limits(options),
        credentials=Credentials(keyring, tuple(options.allowed_origins.split())),
        crowd=crowd,
        listings=listings,
        patience=_patience(options),
    )
    tasks = _tasks(keyring, crowd, hub, metrics)
    try:
        hello = await supervisor.start()
        server = Server(
            _uvicorn_config(options, doors), partial(let_finish, hub, doors, options.shutdown_grace_s)
        )
        print(welcome(listening, f"{hello.model} ({hello.dtype}, {hello.device})"), flush=True)
        await server.serve(sockets=[listening])
    except EngineFailed as error:
        raise Unable(f"the engine does not start: {error}") from None
    finally:
        for task in tasks:
            task.cancel()
        await supervisor.stop()
        if traces is not None:
            await asyncio.to_thread(traces.close)


def _keyring(options: Options) -> Keyring | None:
    try:
        return Keyring(Path(options.keys_file)) if options.keys_file else None
    except Unreadable as problem:
        raise Unable(str(problem)) from None


def _everything(tenant: str) -> Allowance:
    return EVERYTHING


def _traces() -> Exported:
    try:
        from realtime.observability.trace_export import (
            Exported,  # brings OpenTelemetry: only where it was asked for
        )
    except ModuleNotFoundError:
        raise Unable(
            "--traces on needs OpenTelemetry; install it with: pip install 'midstream-server[otel]'"
        ) from None
    return Exported()


def _tasks(
    keyring: Keyring | None, crowd: Crowd, hub: Hub, metrics: Metrics | None
) -> list[asyncio.Task[None]]:
    """What goes on beside everything else, for as long as the server runs."""
    loop, tasks = asyncio.get_running_loop(), []
    if keyring is not None:
        tasks.append(loop.create_task(watch(keyring, crowd, hub)))
    if metrics is not None:
        tasks.append(loop.create_task(loop_lag.measure(metrics.lagged)))
    return tasks


def _connector(options: Options) -> Connect:
    engine_options = api.EngineOptions(
        model=options.model,
        device=options.device,
        devices=options.devices,
        dtype=options.dtype,
        attention=options.attention,
        threads=options.threads,
        kv_tokens=options.kv_tokens,
        gpu_memory_fraction=options.gpu_memory_fraction,
        host_kv_gib=options.host_kv_gib,
        block_size=options.block_size,
        step_tokens=options.step_tokens,
        batch_rows=options.batch_rows,
        max_streams=options.max_streams,
        context=options.context,
        toy_step_ms=options.toy_step_ms,
        log_level=options.log_level,
        log_format=options.log_format,
    )
    if options.engine == "process":
        return lambda on_message, on_closed: ProcessLink(engine_options, on_message, on_closed)
    return lambda on_message, on_closed: ThreadLink(engine_options, on_message, on_closed)


def _limits(options: Options) -> Limits:
    return Limits(
        max_message_bytes=options.max_message_bytes,
        streams_per_connection=options.streams_per_connection,
        auto_credit_window=options.auto_credit_window,
        ack_every=options.ack_every,
    )


def _patience(options: Options) -> Patience:
    """A reader over HTTP that takes nothing is told so before the transport cuts it off."""
    return Patience(heartbeat_s=options.sse_heartbeat_s, stalled_s=0.75 * options.send_timeout_s)


def _http_limits(options: Options) -> http_protocol.HttpLimits:
    return http_protocol.HttpLimits(
        handshake_timeout_s=options.handshake_timeout_s, send_timeout_s=options.send_timeout_s
    )


def _uvicorn_config(options: Options, doors: Doors) -> uvicorn.Config:
    return uvicorn.Config(
        application(doors),
        http=http_protocol.protocol_class(_http_limits(options)),
        ws=websocket_protocol.protocol_class(
            websocket_protocol.Limits(send_timeout_s=options.send_timeout_s)
        ),
        ws_max_size=options.max_message_bytes,
        ws_ping_timeout=PEER_SILENCE_S,
        backlog=ACCEPTED_AT_ONCE,
        log_level=options.log_level,
        log_config=uvicorn.config.LOGGING_CONFIG if options.log_format == "console" else None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=5,
    )


if __name__ == "__main__":
    sys.exit(main())
