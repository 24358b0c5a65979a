"""The spare: a process that has loaded what any model needs, and waits for its options.

One that gets them may leave a copy of itself behind, which waits in its place: the copy shares all that was
loaded, page by page, with the engine that the other becomes. It comes about before there is a model, a
thread or a CUDA context. It knows processes and the pipe, and nothing of engines.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
from collections.abc import Callable

import msgspec

from engine import api
from engine.pipe import Pipe

log = logging.getLogger(__name__)


def wait_for_options(pipe: Pipe, may_copy: Callable[[], bool]) -> tuple[Pipe, api.EngineOptions] | None:
    """Returns where there is an engine to be, with its pipe: in a copy, that is another. None where the
    gateway is gone."""
    while True:
        pipe.send(api.Prepared(os.getpid()))
        message, descriptor = pipe.receive_first()
        if message is None:
            return None
        options = msgspec.msgpack.decode(message, type=api.EngineOptions)
        if descriptor is None:
            return pipe, options
        with socket.socket(fileno=descriptor) as next_connection:
            if not (may_copy() and _is_copy()):
                return pipe, options
            pipe.abandon()
            pipe = Pipe(next_connection.dup())


def _is_copy() -> bool:
    """Fork; true in the copy, which is no child of this process: it outlives it, and whoever has made itself
    the parent of orphans learns of its end."""
    gc.freeze()  # the collector writes to what it looks at, and what is written is shared no more
    try:
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            return False
        if os.fork():
            os._exit(0)
    except OSError as error:
        log.warning("no spare engine can be forked: %s", error)
        return False
    return True
