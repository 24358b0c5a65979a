"""The command `midstream serve`, and the only place that wires. Options in, a running server out, and its
orderly end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from engine import api
from realtime import service_manager, several_gateways
from realtime.access.authentication import Credentials
from realtime.access.client_secrets import ClientSecrets
from realtime.access.connection_limits import OpenConnections
from realtime.access.key_file import KeyFileError
from realtime.access.keyless import KeylessRules
from realtime.access.keyring import Keyring
from realtime.access.revocation import enforce_revocations
from realtime.app import Endpoints, application
from realtime.background_tasks import BackgroundTasks
from realtime.bind import (
    StartupError,
    address_of,
    bind,
    check_tellable,
    end_on_hangup,
    greet,
    raise_descriptor_limit,
    tell,
    welcome,
)
from realtime.config import Options, parse, unknown_variables
from realtime.endless_files import is_endless
from realtime.fleet import models_file, places
from realtime.fleet.demands import Demands
from realtime.fleet.fleet import Fleet
from realtime.fleet.kept_models import KeptModels
from realtime.fleet.models_file import ModelEntry
from realtime.fleet.place import PlaceError
from realtime.fleet.ray_agent import RayAgent, with_a_file
from realtime.fleet.served_models import ServedModels
from realtime.fleet.supervisor import Patience
from realtime.fleet.watched_engine import EngineFailed
from realtime.garbage import look_at_all_again, look_at_news_alone
from realtime.http.sse import SseTimeouts
from realtime.http.unknown_routes import no_request
from realtime.hub.hub import Hub
from realtime.hub.models import KnownModel, Models
from realtime.hub.observers import Observer, Observers
from realtime.hub.placement import Placement
from realtime.observability import logs, loop_lag
from realtime.observability.listing import ListingObserver
from realtime.observability.metrics import Metrics
from realtime.observability.refusal_log import RefusalLog
from realtime.observability.request_log import RequestLog
from realtime.server import CLOSE_S, Server, let_finish
from realtime.service_manager import ServiceManager
from realtime.tenants.allowance import Allowance, default_share
from realtime.tenants.quota import Quotas
from realtime.text import grammar
from realtime.transport import http_protocol, websocket_protocol
from realtime.transport.awaited_connections import network_of
from realtime.websocket.connection import ConnectionLimits
from realtime.work_ledger import WorkLedger

if TYPE_CHECKING:
    from realtime.observability.trace_export import ExportedTraces

log = logging.getLogger("midstream")

# A reader that is busy with what it has read answers no ping meanwhile. It is stalled, which costs nothing,
# and not gone.
PEER_SILENCE_S = 300.0

SWITCH_S = 0.0005  # after which a thread that renders or tokenizes a text gives way to the event loop


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(sys.argv[1:] if argv is None else argv, os.environ)
    logs.set_up(options.log_level, options.log_format)
    end_on_hangup()
    for problem in unknown_variables(os.environ):
        log.warning("%s", problem)
    try:
        raise_descriptor_limit()
        check_tellable(options.address_file)
        if options.gateways > 1:
            _check_for_gateways(options)
            return several_gateways.run(options)
        with ExitStack() as bound:
            options = bound.enter_context(with_a_file(options))
            listening = [bound.enter_context(bind(options.host, options.port, shared=options.share_port))]
            if options.own_port:
                listening.append(bound.enter_context(bind(options.host, options.own_port)))
            with asyncio.Runner(loop_factory=_new_loop(options)) as runner:
                runner.run(serve(options, listening))
    except (StartupError, PlaceError) as problem:
        print(f"midstream: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    return 0


def _check_for_gateways(options: Options) -> None:
    """What each of several would find wrong, and say, once engines have loaded their models for it."""
    for file in filter(None, (options.keys_file, options.models)):
        if is_endless(Path(file)):
            raise StartupError(f"{file} is no file, and each of {options.gateways} gateways is to read it")
    _keyring(options)
    _new_loop(options)
    for number in range(options.gateways if options.own_port else 0):
        bind(options.host, options.own_port + number, accepts=False).close()


async def serve(options: Options, listening: list[socket.socket]) -> None:
    """The first of them is where it says that it is."""
    sys.setswitchinterval(SWITCH_S)
    metrics = Metrics() if options.metrics == "on" else None
    traces = _traces() if options.traces == "on" else None
    listings = ListingObserver()
    observers = Observers(
        listings,
        RequestLog(),
        RefusalLog(network_of),
        *(observer for observer in (metrics, traces) if observer is not None),
    )
    background = BackgroundTasks()
    models = _models(options)
    served = _served_models(models)
    agent = _agent(options)
    fleet = _fleet(options, models, served, observers, background)
    keyring = _keyring(options)
    quotas = _quotas(options, keyring)
    hub = Hub(
        fleet.send,
        observers,
        window=options.auto_credit_window,
        max_streams=options.max_streams,
        max_detached=default_share(options.max_streams),
        max_grace_ms=int(options.max_grace_s * 1000),
        max_timeout_ms=int(options.max_timeout_s * 1000),
        stream_memory=options.stream_memory_mib << 20,
        total_stream_memory=options.total_stream_memory_mib << 20,
        quotas=quotas,
        models=Models(_known(options, models)),
    )
    fleet.hub = hub
    kept = KeptModels(hub, served)
    connections = OpenConnections(options.max_connections, options.connections_per_address or None, quotas)
    ledger = WorkLedger()
    endpoints = Endpoints(
        hub,
        metrics,
        _limits(options),
        credentials=_credentials(options, keyring, hub),
        connections=connections,
        listings=listings,
        background=background,
        observer=observers,
        timeouts=_sse_timeouts(options),
        ledger=ledger,
    )
    _start_background(background, keyring, connections, hub, metrics)
    try:
        if agent is not None:
            demands = Demands(hub, kept.asked_for)
            keep = partial(agent.keep_running, demands.look, partial(_receive, kept, observers))
            background.start("the agent that asks Ray", keep)
        if options.engine_addresses_file:  # which may have none yet that can be used
            follow = partial(fleet.follow, partial(places.listening, options))
            background.start("the look for engines that come and go", follow)
        with _cancelled_by_sigterm():
            sleeping = _sleeping(options, models)
            await kept.open(sleeping)
            hello = await fleet.start(waits=not sleeping)
            look_at_news_alone()
            hands_over = options.fleet != "embedded" and options.on_drain == "hand-over"
            manager = ServiceManager(os.environ)

            def ending() -> Coroutine[Any, Any, None]:
                manager.tell(service_manager.ENDS)
                return let_finish(
                    hub,
                    fleet,
                    endpoints,
                    options.shutdown_grace_s,
                    until_answered=server.until_answered,
                    hands_over=hands_over,
                )

            def accepting() -> None:
                tell(options.address_file, address_of(listening[0]))
                greet(welcome(listening[0], _served(hub, hello), keyless=keyring is None))
                manager.serves(background)

            config = _uvicorn_config(options, endpoints, ledger)
            server = Server(config, ending, accepting, accepts_to_the_end=not hands_over)
            await server.serve(sockets=listening)
    except EngineFailed as error:
        raise StartupError(f"the engine does not start: {error}") from None
    finally:
        await background.stop()
        await fleet.stop()
        grammar.close()
        if traces is not None:
            await asyncio.to_thread(traces.close)


def _new_loop(options: Options) -> Callable[[], asyncio.AbstractEventLoop]:
    if options.event_loop == "asyncio":
        return asyncio.new_event_loop
    try:
        import uvloop  # only where it was asked for
    except ModuleNotFoundError:
        raise StartupError(
            "--event-loop uvloop needs it; in a clone of Midstream, install it with: "
            "pip install ./clients/python '.[uvloop]'"
        ) from None
    new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return new_loop


@contextmanager
def _cancelled_by_sigterm() -> Iterator[None]:
    """Until the server has taken that over, and ends in good order. By itself it would leave who loads a
    model behind, and as a container's first process not even be noticed."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(task.cancel))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _keyring(options: Options) -> Keyring | None:
    try:
        return Keyring(Path(options.keys_file)) if options.keys_file else None
    except KeyFileError as problem:
        raise StartupError(str(problem)) from None


def _quotas(options: Options, keyring: Keyring | None) -> Quotas:
    if keyring is None:
        return Quotas()
    quotas = Quotas(keyring.allowance, share=_tenants_share(options))
    keyring.on_change = quotas.allowances_changed
    return quotas


def _credentials(options: Options, keyring: Keyring | None, hub: Hub) -> Credentials:
    names = (options.host, *options.allowed_hosts.split())
    rules = KeylessRules(tuple(name.lower() for name in names), options.insecure_open)
    origins = tuple(options.allowed_origins.split())
    return Credentials(ClientSecrets(hub.deposits), keyring, origins, rules)


def _tenants_share(options: Options) -> Allowance:
    return Allowance(
        max_streams=default_share(options.max_streams),
        max_connections=default_share(options.max_connections),
    )


def _traces() -> ExportedTraces:
    try:
        # It brings OpenTelemetry: only where it was asked for.
        from realtime.observability.trace_export import ExportedTraces

        return ExportedTraces()
    except ModuleNotFoundError:
        raise StartupError(
            "--traces on needs OpenTelemetry; in a clone of Midstream, install it with: "
            "pip install ./clients/python '.[otel]'"
        ) from None
    except (ValueError, RuntimeError) as problem:  # some of them are looked at by the import
        raise StartupError(f"--traces on cannot be as its variables OTEL_* say: {problem}") from None


def _models(options: Options) -> list[ModelEntry]:
    try:
        return models_file.entries(options)
    except PlaceError as problem:
        raise StartupError(str(problem)) from None


def _known(options: Options, models: list[ModelEntry]) -> list[KnownModel]:
    """Those that are known before engines say what they have."""
    if options.fleet != "embedded" and not options.models:
        return []
    return [KnownModel(entry.name, entry.aliases, entry.parent) for entry in models]


def _served(hub: Hub, hello: api.Hello | None) -> str:
    """In the welcome's words."""
    names = [known.name for known in hub.models]
    if hello is None or len(names) > 1:
        return ", ".join(names)
    return f"{hello.model} ({hello.weights or hello.dtype}, {hello.device})"


def _sleeping(options: Options, models: list[ModelEntry]) -> list[str]:
    """Models that have no engine while nobody needs them, though others keep their engines."""
    return [entry.name for entry in models if options.fleet == "ray" and entry.keep_alive_s is not None]


def _receive(kept: KeptModels, observer: Observer, placement: Placement) -> None:
    kept.receive(placement)
    observer.placed(placement)


def _agent(options: Options) -> RayAgent | None:
    if options.fleet != "ray":
        return None
    try:
        return RayAgent(options.ray, Path(options.engine_addresses_file))
    except PlaceError as problem:
        raise StartupError(str(problem)) from None


def _served_models(models: list[ModelEntry]) -> ServedModels:
    made_by = {entry.name: places.engine_options(entry.options) for entry in models}
    return ServedModels(made_by, {entry.name: entry.tool_format for entry in models})


def _fleet(
    options: Options,
    models: list[ModelEntry],
    served: ServedModels,
    observer: Observer,
    background: BackgroundTasks,
) -> Fleet:
    try:
        engines = places.at_start(options, models)
    except PlaceError as problem:
        raise StartupError(str(problem)) from None
    return Fleet(
        engines,
        observer,
        background,
        patience=Patience(options.engine_silence_s),
        spare=places.wants_spare(options),
        models=served,
        keep_alive_s={entry.name: entry.keep_alive_s for entry in models if entry.keep_alive_s is not None},
    )


def _start_background(
    background: BackgroundTasks,
    keyring: Keyring | None,
    connections: OpenConnections,
    hub: Hub,
    metrics: Metrics | None,
) -> None:
    if keyring is not None:
        watch = partial(enforce_revocations, keyring, connections, hub)
        background.start("the watch over revoked keys", watch)
    garbage = partial(look_at_all_again, lambda: hub.is_empty, lambda: hub.accounts.total.held)
    background.start("the look for garbage", garbage)
    if metrics is not None:
        background.start("the measure of the event loop's lag", partial(loop_lag.measure, metrics.lagged))


def _limits(options: Options) -> ConnectionLimits:
    return ConnectionLimits(
        max_message_bytes=options.max_message_bytes,
        streams_per_connection=options.streams_per_connection,
        auto_credit_window=options.auto_credit_window,
        ack_every=options.ack_every,
        max_grace_ms=int(options.max_grace_s * 1000),
        max_timeout_ms=int(options.max_timeout_s * 1000),
    )


def _sse_timeouts(options: Options) -> SseTimeouts:
    """A reader over HTTP that takes nothing is told so before the transport cuts it off."""
    return SseTimeouts(heartbeat_s=options.sse_heartbeat_s, stalled_s=0.75 * options.send_timeout_s)


def _http_limits(options: Options) -> http_protocol.HttpLimits:
    return http_protocol.HttpLimits(
        handshake_timeout_s=options.handshake_timeout_s,
        send_timeout_s=options.send_timeout_s,
        open_limit=options.max_connections + http_protocol.HttpLimits.pending_limit,
        open_limit_per_address=options.max_connections + http_protocol.HttpLimits.pending_limit_per_address,
    )


def _uvicorn_config(options: Options, endpoints: Endpoints, ledger: WorkLedger) -> uvicorn.Config:
    http_limits = _http_limits(options)
    refused = no_request(endpoints.observer)
    return uvicorn.Config(
        application(endpoints),
        http=http_protocol.protocol_class(http_limits, refused, ledger),
        ws=websocket_protocol.protocol_class(
            websocket_protocol.WebSocketLimits(
                send_timeout_s=options.send_timeout_s,
                closing_limit=http_limits.open_limit,
                closing_limit_per_address=http_limits.open_limit_per_address,
            ),
            refused,
            ledger,
        ),
        ws_max_size=options.max_message_bytes,
        ws_ping_timeout=PEER_SILENCE_S,
        log_level=options.log_level,
        log_config=None,  # its loggers end where all do
        access_log=False,
        workers=1,  # or WEB_CONCURRENCY says, which is not for us, and may be no number
        lifespan="off",
        timeout_graceful_shutdown=int(CLOSE_S),
    )


if __name__ == "__main__":
    sys.exit(main())
