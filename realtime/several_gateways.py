"""Several gateways at one port, `midstream serve --gateways N`: each a server of its own, over engines that
listen. This process keeps them running, engines and gateways, and nothing goes through it.

Whoever connects comes to one of them, as the system chooses. One that ends is started anew, and its streams
go on at the others meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import signal
import socket
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from engine.model.with_parent import with_this_process
from realtime import service_manager
from realtime.background_tasks import BackgroundTasks
from realtime.backoff import Backoff
from realtime.bind import StartupError, bind, greet, host_and_port, tell
from realtime.certificates import Certificates
from realtime.config import PREFIX, ListenOptions, ModelOptions, Options, spelled
from realtime.fleet import models_file, places
from realtime.fleet.address import Address
from realtime.fleet.long_start import STILL_S
from realtime.fleet.models_file import ModelEntry
from realtime.fleet.place import PlaceError
from realtime.fleet.process_link import KILLED_S
from realtime.fleet.socket_link import SocketLink
from realtime.fleet.supervisor import START_SILENCE_S
from realtime.fleet.watched_engine import EngineFailed, WatchedEngine
from realtime.service_manager import ServiceManager

log = logging.getLogger("midstream")

LOOK_S = 0.1  # between two looks whether an engine listens yet
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 30.0  # until one that has ended is started anew
OLD_S = 10.0  # one that has run for so long is started at once
NOT_THERE_YET = (FileNotFoundError, ConnectionRefusedError)  # at its socket
SAID_EVERY_S = 1.0
LONGEST_WORD = 4096  # bytes of what a gateway says of itself
END_S = 20.0  # behind the grace, whatever hangs: one server takes no longer, and nobody waits longer for us
ENGINE_END_S = 5.0  # of these, where there are engines


class NotStartedError(Exception):
    """A process has ended before it was ready. The message says so where it has not said why itself."""


class Kept:
    """A process that is started anew when it ends, until it is to end."""

    def __init__(self, name: str, command: list[str]) -> None:
        """`name`: as the log is to say it."""
        self.name = name
        self._command = command
        self._backoff = Backoff(first_s=FIRST_WAIT_S, longest_s=LONGEST_WAIT_S)
        self._process: Process | None = None
        self._ends = False
        self._began_s = self._waited_for_s = 0.0

    async def start(self, *, speaks: bool = False) -> Process:
        self._began_s = self._waited_for_s = asyncio.get_running_loop().time()
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=DEVNULL,
            stdout=PIPE if speaks else DEVNULL,
            env=_without_options(os.environ) | self._asked(),
            start_new_session=True,  # what a terminal sends comes to us alone
        )
        return self._process

    async def begin(self, *, speaks: bool = False) -> Process:
        """For the first time: nobody serves yet, who could wait until the system has what it takes."""
        try:
            return await self.start(speaks=speaks)
        except OSError as error:
            raise NotStartedError(f"{self.name} cannot be started: {error.strerror}") from None

    def _asked(self) -> dict[str, str]:
        """What it finds in its environment beside what we have."""
        return {}

    async def failure(self) -> NotStartedError:
        """It has ended before it was ready."""
        assert self._process is not None
        status = await self._process.wait()
        # Who is killed, as where memory is short, says nothing.
        return NotStartedError(f"{self.name} has been ended, with status {status}" if status < 0 else "")

    def is_waited_for(self) -> None:
        """Which is said now and then: nobody can tell one that hangs as it starts from one that is slow."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._waited_for_s >= STILL_S and not self.has_ended:
            self._waited_for_s = now_s
            since_s = now_s - self._began_s
            log.warning("%s does not serve yet, %.0f s after it was started", self.name, since_s)

    async def keep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            assert self._process is not None
            status = await self._process.wait()
            if self._ends:
                return
            log.error("%s has ended, with status %d; it is started anew", self.name, status)
            if loop.time() - self._began_s > OLD_S:
                self._backoff.reset()
            await self._start_anew()

    async def _start_anew(self) -> None:
        """As soon as the system has what a process takes, unless it is to end."""
        while True:
            await asyncio.sleep(self._backoff.next_s())
            if self._ends:
                return
            try:
                await self.start()
            except OSError as error:
                log.error("%s cannot be started: %s; trying again", self.name, error)
            else:
                return

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.returncode is not None

    def tell(self, number: int) -> None:
        self._ends = True
        if self._process is not None and not self.has_ended:
            self._process.send_signal(number)

    async def ended(self, within_s: float | None = None) -> None:
        """Later than that it is ended. What waits in the system, as for a device that hangs, does not end
        even so, and nobody waits for that."""
        if not await self._ended(within_s):
            log.error("%s does not end: it is ended", self.name)
            self.kill()
            if not await self._ended(KILLED_S):
                log.error("%s does not end, though it was killed", self.name)

    async def _ended(self, within_s: float | None) -> bool:
        if self._process is None:
            return True
        try:
            async with asyncio.timeout(within_s):
                await self._process.wait()
        except TimeoutError:
            return False
        return True

    def kill(self) -> None:
        """To be started anew, unless it is to end."""
        if self._process is not None and not self.has_ended:
            self._process.kill()


class KeptEngine(Kept):
    """At a socket of its own, by which it is also asked whether it lives."""

    def __init__(self, name: str, options: ListenOptions) -> None:
        super().__init__(name, _midstream("engine", spelled(options)))
        self.address = options.listen
        self.ready = asyncio.Event()
        self._silent_until_s: dict[str, float] = {}  # by what there is to say: few

    async def watch(self, silence_s: float) -> None:
        while True:
            connect = partial(SocketLink, Address(self.address), "", Certificates("", "", ""))
            engine = WatchedEngine(connect)
            try:
                await engine.open(
                    lambda _: None, lambda _: None, answer_s=START_SILENCE_S, start_silence_s=START_SILENCE_S
                )
            except (EngineFailed, OSError) as problem:
                self._cannot_be_asked(problem)
                await asyncio.sleep(LOOK_S)
                continue
            self.ready.set()
            await _first(self._end_if_hung(engine, silence_s), engine.closed.wait())
            await engine.close()
            self._waited_for_s = asyncio.get_running_loop().time()  # it served until now

    def _cannot_be_asked(self, problem: EngineFailed | OSError) -> None:
        """Of each reason a line a second at most; but that it loads its model is none, nor that it ends as it
        was told."""
        now_s, why = asyncio.get_running_loop().time(), str(problem)
        if self._ends:
            return
        if isinstance(problem, NOT_THERE_YET):
            self.is_waited_for()
        elif now_s >= self._silent_until_s.get(why, now_s):
            self._silent_until_s[why] = now_s + SAID_EVERY_S
            log.warning("%s cannot be asked whether it lives: %s; trying again", self.name, why)

    async def _end_if_hung(self, engine: WatchedEngine, silence_s: float) -> None:
        while True:
            if not await engine.answers(silence_s):
                log.error("%s has said nothing for %g s: it is ended", self.name, silence_s)
                self.kill()
                return
            await asyncio.sleep(silence_s / 2)


class KeptGateway(Kept):
    """It says again and again that it lives, as it would to systemd."""

    def __init__(self, name: str, command: list[str], place: Path, silence_s: float) -> None:
        super().__init__(name, command)
        self._place = place
        self._silence_s = silence_s
        self._has_spoken = False
        self._heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._heard.setblocking(False)
        try:
            self._heard.bind(str(place))
        except OSError as error:  # its path may be too long for one
            self._heard.close()
            raise StartupError(
                f"no socket can be made at {place}: {error}; TMPDIR may name another folder"
            ) from None

    def _asked(self) -> dict[str, str]:
        self._hear()  # the last of the one before
        self._has_spoken = False
        return service_manager.asking(str(self._place), self._silence_s)

    async def watch(self) -> None:
        """What says nothing for so long, or twice, though it did before, is ended."""
        while True:
            await asyncio.sleep(self._silence_s)
            if self._hear():
                self._has_spoken = True
            elif not self._has_spoken:
                self.is_waited_for()
            elif not (self._ends or self.has_ended):
                log.error("%s has said nothing for %g s: it is ended", self.name, self._silence_s)
                self.kill()

    def _hear(self) -> bool:
        """Whether it has said anything since it was listened to last."""
        has_spoken = False
        with suppress(BlockingIOError):
            while self._heard.recv(LONGEST_WORD):
                has_spoken = True
        return has_spoken

    def close(self) -> None:
        self._heard.close()


class SeveralGateways:
    """All of them, from the first engine's start to the last gateway's end."""

    def __init__(self, options: Options, models: list[ModelEntry], folder: Path, port: int) -> None:
        embedded = options.fleet == "embedded"
        self._silence_s = options.engine_silence_s
        self._grace_s = options.shutdown_grace_s
        self._engines = list(_engines(options, models, folder)) if embedded else []
        addresses = " ".join(engine.address for engine in self._engines)
        theirs = replace(options, address_file="")
        if embedded:  # which end behind them: there is nobody to whom streams could be handed over
            theirs = replace(theirs, fleet="static", engine_addresses=addresses, on_drain="finish")
        self._gateways = [
            KeptGateway(
                f"gateway {number}",
                _midstream("serve", spelled(_gateway(theirs, number, port))),
                folder / f"gateway-{number}",
                self._silence_s,
            )
            for number in range(options.gateways)
        ]
        self.background = BackgroundTasks()

    async def start(self) -> str:
        """Returns what the first of them says when it is ready. Raises NotStartedError."""
        for engine in self._engines:  # one by one, since each looks how much memory there is
            await engine.begin()
            self.background.start(f"the watch over {engine.name}", partial(engine.watch, self._silence_s))
            await _first(engine.ready.wait(), engine.ended())
            if not engine.ready.is_set():
                raise await engine.failure()
            self._keep(engine)
        for gateway in self._gateways:
            self.background.start(f"the watch over {gateway.name}", gateway.watch)
        said = await asyncio.gather(*(_until_it_says_so(gateway) for gateway in self._gateways))
        for gateway in self._gateways:
            self._keep(gateway)
        return said[0]

    def _keep(self, kept: Kept) -> None:
        async def keep() -> None:
            await kept.keep()
            await asyncio.get_running_loop().create_future()  # it is to end: nothing is done any more

        self.background.start(f"the keeper of {kept.name}", keep)

    def drain(self) -> None:
        """Or, said again, end at once."""
        for gateway in self._gateways:
            gateway.tell(signal.SIGTERM)

    async def drained(self) -> None:
        """Who does not end by itself, as one that has hung, is ended."""
        within_s = self._grace_s + END_S - (ENGINE_END_S if self._engines else 0.0)
        await asyncio.gather(*(gateway.ended(within_s) for gateway in self._gateways))

    async def stop(self) -> None:
        for gateway in self._gateways:  # that nobody waits for any more
            gateway.tell(signal.SIGKILL)
        for engine in self._engines:
            engine.tell(signal.SIGTERM)
        await asyncio.gather(*(one.ended(ENGINE_END_S) for one in (*self._gateways, *self._engines)))
        await self.background.stop()
        for gateway in self._gateways:
            gateway.close()


async def keep(options: Options) -> int:
    """Until a signal ends it: the exit status."""
    models = _models(options)
    ending = asyncio.Event()
    with bind(options.host, options.port, accepts=False) as alone:  # or somebody else's would share it
        port = alone.getsockname()[1]
    with _folder() as folder, bind(options.host, port, accepts=False, shared=True):
        several = SeveralGateways(options, models, folder, port)
        manager = ServiceManager(os.environ)
        loop, signals = asyncio.get_running_loop(), list[int]()

        def end(number: int) -> None:
            signals.append(number)
            if ending.is_set():
                several.drain()
            ending.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end, number)
        try:
            starting = asyncio.create_task(several.start())
            waiting = asyncio.create_task(ending.wait())
            await asyncio.wait((starting, waiting), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                return 128 + signals[0]
            said = await starting
            tell(options.address_file, host_and_port(options.host, port))
            greet(said)
            manager.serves(several.background)
            await waiting
            manager.tell(service_manager.ENDS)
            several.drain()
            await several.drained()
        except NotStartedError as said:
            if str(said):
                raise StartupError(str(said)) from None
            return 1
        finally:
            await several.stop()
    return 0


def _models(options: Options) -> list[ModelEntry]:
    try:
        models = models_file.entries(options)
        if options.fleet == "embedded":
            places.check_own(options, models)
    except PlaceError as problem:
        raise StartupError(str(problem)) from None
    for entry in models:
        if options.fleet == "embedded" and entry.keep_alive_s is not None:
            raise StartupError(
                f'--gateways is {options.gateways}, and "{entry.name}" has a keep_alive: several gateways'
                ' have models that stay loaded, so it must be "forever"'
            )
    return models


def _engines(options: Options, models: list[ModelEntry], folder: Path) -> Iterator[KeptEngine]:
    count, places_taken = sum(entry.replicas for entry in models), itertools.count()
    for entry in models:
        threads = entry.options.threads or places.threads_each(count)
        of_model = {field.name: getattr(entry.options, field.name) for field in fields(ModelOptions)}
        whose = f' of "{entry.name}"' if options.models else ""
        for number in range(entry.replicas):
            listen = f"unix:{folder}/{next(places_taken)}"
            own = ListenOptions(**of_model | {"listen": listen, "threads": threads, "model_name": entry.name})
            yield KeptEngine(f"engine {number}{whose}", own)


def _gateway(options: Options, number: int, port: int) -> Options:
    own = options.own_port + number if options.own_port else 0
    return replace(options, gateways=1, port=port, share_port=True, own_port=own, engine="process", engines=1)


def _midstream(command: str, options: list[str]) -> list[str]:
    return [*with_this_process("midstream", command), *options]


def _without_options(environ: Mapping[str, str]) -> dict[str, str]:
    """The command line says them all."""
    theirs = service_manager.not_asking(environ)
    return {name: value for name, value in theirs.items() if not name.startswith(PREFIX)}


async def _until_it_says_so(gateway: Kept) -> str:
    """What it says when it is ready: lines, and an empty one."""
    process = await gateway.begin(speaks=True)
    assert process.stdout is not None
    said = ""
    while line := (await process.stdout.readline()).decode():
        said += line
        if line == "\n" and said.strip():
            return said.rstrip("\n") + "\n"
    raise await gateway.failure()


async def _first(*what: Coroutine[Any, Any, object]) -> None:
    """Until one of them is done."""
    tasks = [asyncio.create_task(one) for one in what]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


@contextmanager
def _folder() -> Iterator[Path]:
    """For engines' sockets, which nobody else can come to."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="midstream-"))
    except OSError as error:  # a full disk
        raise StartupError(f"no folder can be made for engines' sockets: {error.strerror}") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(options: Options) -> int:
    return asyncio.run(keep(options))
