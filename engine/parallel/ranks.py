"""Ranks: one model on several devices, with a process for each of them, in step.

Rank 0 is the engine that the gateway speaks to. It starts the others, and sends each of them the commands
of every step, and what its matchers have found (`step/told_outlooks.py`). So all run the same scheduler over
the same commands; and since the tokens that rank 0 chose are everybody's, all make the same decisions without
another word. What else they exchange, the model does by itself.

It knows processes, pipes and torch's process group. It knows no stream, no model and no step.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from datetime import timedelta
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from engine import api
from engine.pipe import Pipe
from engine.step.command_queue import CommandQueue, CommandSource, Streams
from engine.step.lookout import MakeLookout
from engine.step.told_outlooks import FollowerLookout, FoundOutlooks, LeaderLookout

log = logging.getLogger(__name__)

LOCALHOST = "127.0.0.1"
LOAD_TIMEOUT = timedelta(hours=2)  # of a rank that waits for one that still loads; a death is noticed at once
CLOSE_TIMEOUT_S = 5.0


class RankConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a follower."""

    rank: int
    port: int
    device: str
    options: api.EngineOptions


class RankGroup:
    """This process's rank among the processes that share the model."""

    def __init__(
        self, config: RankConfig, store: Store, commands: CommandSource, make_lookout: MakeLookout
    ) -> None:
        self.rank = config.rank
        self.size = config.options.devices
        self.commands, self.make_lookout = commands, make_lookout
        self._cuda = config.device == "cuda"
        self.device = f"cuda:{self.rank}" if self._cuda else "cpu"
        os.environ["LOCAL_RANK"] = str(self.rank)  # by which transformers finds the device
        if self._cuda:
            torch.cuda.set_device(self.rank)
        else:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # nobody from elsewhere is to take part
            torch.set_num_threads(config.options.threads or max(1, torch.get_num_threads() // self.size))
        dist.init_process_group(
            "nccl" if self._cuda else "gloo",
            store=store,
            rank=self.rank,
            world_size=self.size,
            timeout=LOAD_TIMEOUT,
            device_id=torch.device(self.device) if self._cuda else None,
        )

    def broadcast(self, tokens: Tensor) -> None:
        """All have the tokens of rank 0 from now on; the host does not wait for it."""
        dist.broadcast(tokens, 0)

    def minimum(self, number: int) -> int:
        """The smallest of the ranks' numbers."""
        numbers = torch.tensor([number], device=self.device)
        dist.all_reduce(numbers, dist.ReduceOp.MIN)
        return int(numbers.item())


Told = list[api.AnyCommand] | FoundOutlooks


class Followers:
    """The other ranks, as rank 0 speaks to them."""

    def __init__(self, pipes: list[Pipe]) -> None:
        self._pipes = pipes

    def tell(self, message: Told) -> None:
        try:
            for pipe in self._pipes:
                pipe.send(message)
        except OSError as error:  # which, on its own, would be taken for the gateway's end
            raise RuntimeError("a process that holds a part of the model is gone") from error


class LeaderCommandQueue:
    """The command queue of rank 0: what is taken from it is sent to all."""

    def __init__(self, followers: Followers) -> None:
        self._queue = CommandQueue()
        self._followers = followers
        self.put, self.put_back, self.wait = self._queue.put, self._queue.put_back, self._queue.wait

    @property
    def empty(self) -> bool:
        return self._queue.empty

    def take(self, most_s: float, streams: Streams) -> Iterator[api.AnyCommand]:
        """The others hear of them behind the last: how many there was time for is known then."""
        commands: list[api.AnyCommand] = []
        for command in self._queue.take(most_s, streams):
            commands.append(command)
            yield command
        self._followers.tell(commands)


class Leader:
    """Rank 0, as another hears it."""

    def __init__(self) -> None:
        self.commands = FollowerCommandQueue()
        self._outlooks = SimpleQueue[FoundOutlooks]()
        self._decoder = msgspec.msgpack.Decoder[Told](Told)

    def hears(self, message: bytes) -> None:
        told = self._decoder.decode(message)
        if isinstance(told, FoundOutlooks):
            self._outlooks.put(told)
        else:
            self.commands.put(told)

    @property
    def make_lookout(self) -> MakeLookout:
        return partial(FollowerLookout, self._outlooks.get)


class FollowerCommandQueue:
    """The command queue of the others: a list for every step, for which the step waits."""

    empty = True  # nothing may depend on what has come early

    def __init__(self) -> None:
        self._steps: SimpleQueue[list[api.AnyCommand]] = SimpleQueue()
        self.put = self._steps.put

    def take(self, most_s: float, streams: Streams) -> list[api.AnyCommand]:
        """Whatever rank 0 has taken."""
        return self._steps.get()

    def put_back(self, tenant: int, commands: Several[api.AnyCommand]) -> None:
        """Not here: rank 0 takes them anew."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Not here: the next step waits for rank 0."""


class RankLauncher:
    """Starts the processes of the other ranks, and calls `lost` when one of them ends: by default, this
    process ends with it."""

    def __init__(self, options: api.EngineOptions, lost: Callable[[], None] = lambda: os._exit(1)) -> None:
        self._options = options
        self._lost = lost
        self._closing = False
        self._pipes: list[Pipe] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, folder: Path, device: str) -> RankGroup:
        """Returns when all of them have joined."""
        with socket.create_server((LOCALHOST, 0)) as listening:
            port = listening.getsockname()[1]
            fd = os.dup(listening.fileno())  # the store's from now on
        options = msgspec.structs.replace(self._options, model=str(folder))
        for rank in range(1, options.devices):
            self._launch(RankConfig(rank=rank, port=port, device=device, options=options))
        store = TCPStore(LOCALHOST, port, is_master=True, wait_for_workers=False, master_listen_fd=fd)
        config = RankConfig(rank=0, port=port, device=device, options=options)
        followers = Followers(self._pipes)
        lookout = partial(LeaderLookout, followers.tell)
        return RankGroup(config, store, LeaderCommandQueue(followers), lookout)

    def close(self) -> None:
        self._closing = True
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            try:
                process.wait(CLOSE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()

    def _launch(self, config: RankConfig) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "engine.parallel.follower", str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        pipe = Pipe(ours)
        pipe.send(config)
        self._pipes.append(pipe)
        self.processes.append(process)
        threading.Thread(target=self._watch, args=(config.rank, process), daemon=True).start()

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        if not self._closing:
            log.error("rank %d has ended with status %d, and the engine ends with it", rank, status)
            self._lost()


def join(config: RankConfig, leader: Leader) -> RankGroup:
    store = TCPStore(LOCALHOST, config.port, is_master=False)
    return RankGroup(config, store, leader.commands, leader.make_lookout)
