"""The engine process: `python -m engine FD MODEL`, with one end of a socket pair as file descriptor FD.

What it needs for such a model it imports at once, and loads the model when it has its options: it may be a
spare that waits for them. The first message down is `EngineOptions`, every further one a list of commands; up
go `Starting` now and then, `Prepared`, `Hello` or `Failed`, then a `StepOutput` a step. When the other end
closes, the engine stops; one that is still loading goes at once. With the options may come a connection for a
spare that is to wait behind this one.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

from engine import api
from engine.heap import settle_heap
from engine.loading_heartbeat import heartbeat
from engine.logs import configure_logging
from engine.model.with_parent import end_with_parent
from engine.pipe import Pipe
from engine.pipe_reader import PipeReader
from engine.spare import wait_for_options

if TYPE_CHECKING:
    from engine.build.build import JoinRanks

log = logging.getLogger("engine")


def main(argv: list[str]) -> int:
    pipe = Pipe(socket.socket(fileno=int(argv[1])))
    # The gateway, which gets the same signals, decides when the engine ends.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    try:
        with heartbeat(pipe.send, unheard=_go):
            _warm_up(argv[2])
        begun = wait_for_options(pipe, _may_copy)
        return 0 if begun is None else serve(*begun)
    except (BrokenPipeError, ConnectionResetError):
        log.info("the gateway is gone")
        return 0


def _go() -> None:
    """Libraries take long to load, and whoever loads them listens to nobody."""
    os._exit(0)


def _warm_up(model: str) -> None:
    # A thread that waits for the others spins a little, then sleeps. Without a bound it spins for a whole
    # time slice of whoever has its neighbour's core: a step took fifteen times as long beside two busy
    # processes.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    importlib.import_module("engine.build.build" if model == "toy" else "engine.model.loading")
    if not _has_cuda():
        importlib.import_module("engine.sampling.numba_draw")


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _may_copy() -> bool:
    """CUDA does not survive a fork, and to ask for it may begin it."""
    return not _has_cuda()


def serve(pipe: Pipe, options: api.EngineOptions) -> int:
    end_with_parent()  # the gateway, by now a copy's, too: what has hung does not notice that the pipe closes
    reader = PipeReader(pipe)
    configure_logging(options.log_level, options.log_format)
    from engine.build.ranks import other_ranks

    with other_ranks(options) as join:
        return _serve(pipe, reader, options, join)


def _serve(pipe: Pipe, reader: PipeReader, options: api.EngineOptions, join: JoinRanks | None) -> int:
    from engine.build.build import build
    from engine.model.preflight import ModelError

    try:
        with heartbeat(pipe.send):
            engine, hello = build(options, join)
    except ModelError as error:
        pipe.send(api.Failed(str(error)))
        return 1
    settle_heap()
    reader.attach(engine.send, engine.stop)
    pipe.send(hello)
    engine.run(pipe.send)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
