"""The engine process: `python -m engine FD MODEL`, with one end of a socket pair as file descriptor FD.

What it needs for such a model it imports at once, and loads the model when it has its options: it may be a
spare that waits for them. The first message down is `EngineOptions`, every further one a list of commands; up
go `Starting` now and then, `Prepared`, `Hello` or `Failed`, then a `StepOutput` a step. When the other end
closes, the engine stops; one that is still loading goes at once.
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
from engine.loading_heartbeat import heartbeat
from engine.logs import configure_logging
from engine.pipe import Pipe
from engine.pipe_reader import PipeReader

if TYPE_CHECKING:
    from engine.build.build import JoinRanks

log = logging.getLogger("engine")


def main(argv: list[str]) -> int:
    pipe = Pipe(socket.socket(fileno=int(argv[1])))
    # The gateway, which gets the same signals, decides when the engine ends.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    reader = PipeReader(pipe)
    try:
        with heartbeat(pipe.send):
            _warm_up(argv[2])
        pipe.send(api.Prepared())
        return serve(pipe, reader, reader.options())
    except (BrokenPipeError, ConnectionResetError):
        log.info("the gateway is gone")
        return 0


def _warm_up(model: str) -> None:
    # A thread that waits for the others spins a little, then sleeps. Without a bound it spins for a whole
    # time slice of whoever has its neighbour's core: a step took fifteen times as long beside two busy
    # processes.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    importlib.import_module("engine.build.build" if model == "toy" else "engine.model.loading")


def serve(pipe: Pipe, reader: PipeReader, options: api.EngineOptions) -> int:
    configure_logging(options.log_level, options.log_format)
    if options.devices == 1:
        return _serve(pipe, reader, options, None)
    from engine.parallel.ranks import RankLauncher

    launcher = RankLauncher(options)
    try:
        return _serve(pipe, reader, options, launcher.start)
    finally:
        launcher.close()


def _serve(pipe: Pipe, reader: PipeReader, options: api.EngineOptions, join: JoinRanks | None) -> int:
    from engine.build.build import build
    from engine.model.preflight import ModelError

    try:
        with heartbeat(pipe.send):
            engine, hello = build(options, join)
    except ModelError as error:
        pipe.send(api.Failed(str(error)))
        return 1
    except MemoryError:
        pipe.send(api.Failed("there is not enough memory for this model and its KV cache"))
        return 1
    reader.attach(engine.send, engine.stop)
    pipe.send(hello)
    engine.run(pipe.send)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
