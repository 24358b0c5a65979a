"""The process of a rank other than 0: `python -m engine.parallel.follower FD`, with one end of a socket pair
as file descriptor FD. Rank 0 starts it.

The first message down is its `Place`, every further one the commands of a step. It is the same engine as rank
0, speaks to nobody, and is over when that one is, whatever it does at the moment: it may be waiting for a
device that will never answer.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import msgspec

from engine.build.build import build
from engine.logs import set_up
from engine.model.preflight import ModelError
from engine.parallel.ranks import Following, Place, Ranks, follow
from engine.pipe import Pipe

log = logging.getLogger("engine")


def main(argv: list[str]) -> int:
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)  # rank 0 decides when it is over
    pipe = Pipe(socket.socket(fileno=int(argv[1])))
    first = pipe.receive()
    if first is None:
        return 0
    place = msgspec.msgpack.decode(first, type=Place)
    level = "warning" if place.options.log_level in ("debug", "info") else place.options.log_level
    set_up(level, place.options.log_format)  # the rest is what rank 0 says too
    inbox = Following()
    threading.Thread(target=_read, args=(pipe, inbox), daemon=True).start()
    try:
        _run(place, inbox)
    except ModelError as error:
        log.error("rank %d: %s", place.rank, error)
    except Exception:
        log.exception("rank %d failed", place.rank)
    return 1


def _run(place: Place, inbox: Following) -> None:
    def join(folder: Path, device: str) -> Ranks:
        return follow(place, inbox)

    engine, _ = build(place.options, join)
    engine.run(lambda _: None)


def _read(pipe: Pipe, inbox: Following) -> None:
    for commands in pipe.commands():
        inbox.put(commands)
    os._exit(0)


if __name__ == "__main__":
    os._exit(main(sys.argv))  # at once: what torch would tidy up may wait for the others
