"""The heartbeat of an engine that is loading a model, which may take minutes and says nothing by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine import api

INTERVAL_S = 1.0


def _nothing() -> None:
    """The engine itself will find out."""


@contextmanager
def heartbeat(
    send: Callable[[api.AnyMessage], None], unheard: Callable[[], None] = _nothing
) -> Iterator[None]:
    """While the block runs, a thread sends `Starting` every second; not once more afterwards. `unheard`: the
    other end is gone."""
    over = threading.Event()
    thread = threading.Thread(target=_beat, args=(send, unheard, over), name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _beat(send: Callable[[api.AnyMessage], None], unheard: Callable[[], None], over: threading.Event) -> None:
    try:
        send(api.Starting())
        while not over.wait(INTERVAL_S):
            send(api.Starting())
    except OSError:
        unheard()
