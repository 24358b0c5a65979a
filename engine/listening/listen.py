"""An engine that listens: it loads its model, and computes for whoever joins until it is told to end."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable

from engine import api
from engine.build.build import build
from engine.build.ranks import other_ranks
from engine.heap import settle_heap
from engine.listening.hang_watch import HangWatch
from engine.listening.listener import Door, Listener

log = logging.getLogger("engine")


def listen(
    options: api.EngineOptions, door: Door, token: str, ready: Callable[[str], None], watch: HangWatch
) -> None:
    """Raises ModelError, where the model cannot be loaded, and DoorError, where the door cannot be
    opened. Nobody can connect before it is, and `ready` is told the address then."""
    with other_ranks(options) as join:
        engine, hello = build(options, join)
        settle_heap()
        listener = Listener(door, token, hello, watch.sending(engine.send))
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, lambda *_: engine.stop())
        ready(door.address)
        log.info("%s is loaded, and gateways may join at %s", hello.model, door.address)
        watch.start()
        engine.run(watch.hearing(listener.emit))
        listener.leave()
