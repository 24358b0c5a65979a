"""A sign of life from an engine that is being loaded, which may take minutes and says nothing by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine import api

EVERY_S = 1.0


@contextmanager
def heard(send: Callable[[api.AnyMessage], None]) -> Iterator[None]:
    """Meanwhile `send` is called now and then, in a thread of its own, and not once more afterwards."""
    over = threading.Event()
    thread = threading.Thread(target=_say, args=(send, over), name="starting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _say(send: Callable[[api.AnyMessage], None], over: threading.Event) -> None:
    try:
        send(api.Starting())
        while not over.wait(EVERY_S):
            send(api.Starting())
    except OSError:
        pass  # nobody listens any more, which the engine itself will find out
