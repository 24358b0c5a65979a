"""The follower process, a rank other than 0: `python -m engine.parallel.follower FD`, with one end of a
socket pair as file descriptor FD. Rank 0 starts it.

The first message down is its `RankConfig`, every further one the commands of a step, or outlooks. It is the
same engine as rank 0, sends nothing to anybody, and ends when that one does, whatever it is doing then: it
may be waiting for a device that will never answer.
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
from engine.logs import configure_logging
from engine.model.preflight import ModelError
from engine.model.with_parent import end_with_parent
from engine.parallel.ranks import Leader, RankConfig, RankGroup, join
from engine.pipe import Pipe

log = logging.getLogger("engine")


def main(argv: list[str]) -> int:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # rank 0 decides when to end
    end_with_parent()  # also where it hangs, and no thread of it notices that the pipe closes
    pipe = Pipe(socket.socket(fileno=int(argv[1])))
    first = pipe.receive()
    if first is None:
        return 0
    config = msgspec.msgpack.decode(first, type=RankConfig)
    level = "warning" if config.options.log_level in ("debug", "info") else config.options.log_level
    configure_logging(level, config.options.log_format)  # the rest is what rank 0 logs too
    leader = Leader()
    threading.Thread(target=_read, args=(pipe, leader), daemon=True).start()
    try:
        _run(config, leader)
    except ModelError as error:
        log.error("rank %d: %s", config.rank, error)
    except Exception:
        log.exception("rank %d failed", config.rank)
    return 1


def _run(config: RankConfig, leader: Leader) -> None:
    def join_ranks(folder: Path, device: str) -> RankGroup:
        return join(config, leader)

    engine, _ = build(config.options, join_ranks)
    engine.run(lambda _: None)


def _read(pipe: Pipe, leader: Leader) -> None:
    while (message := pipe.receive()) is not None:
        leader.hears(message)
    os._exit(0)


if __name__ == "__main__":
    os._exit(main(sys.argv))  # at once: what torch would tidy up may wait for the others
