"""An engine that listens: it loads its model, and computes for whoever joins until it is told to end."""

from __future__ import annotations

import logging
import signal
import socket
import ssl
from contextlib import ExitStack

from engine import api
from engine.build.build import build
from engine.engine import Engine
from engine.heap import settle_heap
from engine.listener import Listener
from engine.parallel.ranks import RankLauncher

log = logging.getLogger("engine")

WAITING = 16  # connections that nobody has accepted


def listen(
    options: api.EngineOptions, listening: socket.socket, token: str, tls: ssl.SSLContext | None
) -> None:
    """Raises ModelError, where the model cannot be loaded. Nobody can connect before it is."""
    with ExitStack() as ended:
        join = None
        if options.devices > 1:
            launcher = RankLauncher(options)
            ended.callback(launcher.close)
            join = launcher.start
        engine, hello = build(options, join)
        settle_heap()
        listening.listen(WAITING)
        listener = Listener(listening, token, hello, engine.send, tls)
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, lambda *_: _end(engine, listener))
        log.info("%s is loaded, and gateways may join at %s", hello.model, _place(listening))
        engine.run(listener.emit)
        listener.leave()


def _end(engine: Engine, listener: Listener) -> None:
    engine.stop()
    listener.end_soon()


def _place(listening: socket.socket) -> str:
    """As a gateway's options spell it."""
    name = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        return f"unix:{name}"
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
