"""`midstream serve`: the only place that wires. Options in, a running server out, and its orderly end."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from engine import api
from midstream.protocol import GoingAway
from realtime import entry, logs, loop_lag, transport
from realtime.app import Doors, application
from realtime.config import Options, parse
from realtime.connection import Limits
from realtime.credentials import Credentials
from realtime.crowd import Crowd
from realtime.hub import Hub
from realtime.keyring import Keyring
from realtime.keys import Unreadable
from realtime.link import ProcessLink
from realtime.listing import Listings
from realtime.metrics import Metrics
from realtime.quota import Gate
from realtime.request_log import RequestLog
from realtime.revocation import watch
from realtime.sse import Patience
from realtime.supervisor import Connect, EngineFailed, Supervisor
from realtime.tenants import EVERYTHING, Allowance
from realtime.watching import Watchers

if TYPE_CHECKING:
    from realtime.trace_export import Exported

log = logging.getLogger("midstream")

BACKLOG = 2048
ACCEPTED_AT_ONCE = 64  # a crowd at the door holds up those inside for some ten milliseconds, and no longer

# A reader that is busy with what it has read answers no ping meanwhile. It is stalled, which costs nothing,
# and not gone.
PEER_SILENCE_S = 300.0


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(sys.argv[1:] if argv is None else argv, os.environ)
    logs.set_up(options.log_level, options.log_format)
    try:
        with _listen(options) as listening:
            asyncio.run(serve(options, listening))
    except Unable as problem:
        print(f"midstream: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


class Unable(Exception):
    """The server cannot start; the message is the line that says why."""


class Server(uvicorn.Server):
    """uvicorn, but that the first signal begins an orderly end, and only the second ends it at once."""

    def __init__(self, config: uvicorn.Config, begin_end: Callable[[], object]) -> None:
        super().__init__(config)
        self._begin_end: Callable[[], object] | None = begin_end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(BACKLOG)  # uvicorn takes what is accepted in one go for what may wait, too

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._begin_end is None:
            super().handle_exit(sig, frame)
        else:
            begin, self._begin_end = self._begin_end, None
            begin()


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
        loop = asyncio.get_running_loop()
        server = Server(
            _uvicorn_config(options, doors),
            lambda: loop.call_soon_threadsafe(_begin_end, server, hub, doors, options),
        )
        _announce(hello, listening)
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
        from realtime.trace_export import Exported  # brings OpenTelemetry: only where it was asked for
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


def _begin_end(server: Server, hub: Hub, doors: Doors, options: Options) -> None:
    task = asyncio.get_running_loop().create_task(_end(server, hub, doors, options))
    task.add_done_callback(lambda done: done.result())


async def _end(server: Server, hub: Hub, doors: Doors, options: Options) -> None:
    """Start nothing new, let what runs finish within the grace, then close."""
    hub.draining = True
    log.info("going away: %d streams have %g s to finish", len(hub.streams), options.shutdown_grace_s)
    for connection in list(doors.open.values()):
        connection.say(GoingAway(deadline_ms=int(options.shutdown_grace_s * 1000)))
    try:
        await asyncio.wait_for(hub.quiet(), options.shutdown_grace_s)
    except TimeoutError:
        hub.cancel_all()
        await hub.quiet()
    await asyncio.gather(*(connection.close_for_good() for connection in list(doors.open.values())))
    server.should_exit = True


def _listen(options: Options) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((options.host, options.port))
        listening.listen(BACKLOG)  # so that whoever reads the URL, or comes sooner, is not turned away
    except OSError as error:
        listening.close()
        why = os.strerror(error.errno or 0)
        raise Unable(f"cannot listen on {options.host} port {options.port}: {why}") from None
    return listening


def _announce(hello: api.Hello, listening: socket.socket) -> None:
    address, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(
        address, address
    )  # every address of ours is also this one
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    print(f"\nMidstream serves {hello.model} ({hello.dtype}, {hello.device}) at {url}")
    print("Try it, in another terminal:")
    print(f'  {_python()} -c "{_TRY % url}"\n', flush=True)


def _python() -> str:
    here = Path(sys.executable).is_relative_to(Path.cwd())
    return shlex.quote(os.path.relpath(sys.executable) if here else sys.executable)


_TRY = (
    "import midstream; [print(chunk.text, end='', flush=True) for chunk in "
    "midstream.sync.connect('%s').start(prompt='Once upon a time', max_tokens=100)]"
)


def _connector(options: Options) -> Connect:
    engine_options = api.EngineOptions(
        model=options.model,
        device=options.device,
        dtype=options.dtype,
        attention=options.attention,
        threads=options.threads,
        kv_tokens=options.kv_tokens,
        gpu_memory_fraction=options.gpu_memory_fraction,
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


class ThreadLink:
    """The way to an engine in a thread: its messages cross into the event loop."""

    def __init__(
        self,
        options: api.EngineOptions,
        on_message: Callable[[api.AnyMessage], None],
        on_closed: Callable[[], None],
    ) -> None:
        from engine.thread import EngineThread  # brings torch with it: only where it was asked for

        loop = asyncio.get_running_loop()

        def cross(call: Callable[..., None], *arguments: Any) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(call, *arguments)

        self._thread = EngineThread(
            options, lambda message: cross(on_message, message), lambda: cross(on_closed)
        )

    async def prepare(self) -> None:
        """A thread has nothing to prepare."""

    async def open(self) -> None:
        self._thread.start()

    def send(self, commands: list[api.AnyCommand]) -> None:
        self._thread.send(commands)

    def kill(self) -> None:
        log.error("a thread cannot be ended: with --engine process this engine would be replaced now")

    async def close(self) -> None:
        self._thread.stop()
        await asyncio.to_thread(self._thread.join)


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


def _http_limits(options: Options) -> entry.HttpLimits:
    return entry.HttpLimits(
        handshake_timeout_s=options.handshake_timeout_s, send_timeout_s=options.send_timeout_s
    )


def _uvicorn_config(options: Options, doors: Doors) -> uvicorn.Config:
    return uvicorn.Config(
        application(doors),
        http=entry.protocol_class(_http_limits(options)),
        ws=transport.protocol_class(transport.Limits(send_timeout_s=options.send_timeout_s)),
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
