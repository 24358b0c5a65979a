"""The command queue: commands on their way into an engine, put by any thread, and taken once a step.

Each tenant's stand in a line of their own, in their order. Next is the tenant that was served least, by the
time that its commands took: one may take as long as thousands of another's.

It knows lists of commands and whose each is, and of what they do that a rewind may be for what follows it,
and that a stream may begin in the place of one that is to end.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Several
from contextlib import suppress
from heapq import heappop, heappush
from queue import Empty, SimpleQueue
from typing import Protocol

from engine import api

NOBODY = -1  # in place of a tenant


class Streams(Protocol):
    """Those that an engine has."""

    @property
    def full(self) -> bool:
        """Whether there is room for no more."""

    def tenant_of(self, stream: int) -> int | None:
        """None where there is no such stream."""


class CommandSource(Protocol):
    """Where an engine takes its commands from."""

    @property
    def empty(self) -> bool: ...
    def put(self, commands: list[api.AnyCommand]) -> None: ...
    def wait(self, timeout_s: float | None = None) -> None:
        """Until there is something to take, or for so long."""

    def put_back(self, tenant: int, commands: Several[api.AnyCommand]) -> None:
        """They were taken, and have yet to be done: before all others of the tenant's."""

    def take(self, most_s: float, streams: Streams) -> Iterable[api.AnyCommand]:
        """What there is, once a step; of very many, those that are dealt with in so long."""


class CommandQueue:
    def __init__(self) -> None:
        self._lists: SimpleQueue[list[api.AnyCommand]] = SimpleQueue()
        self._arrived: list[api.AnyCommand] = []  # and are in no line yet
        self._lines: dict[int, deque[api.AnyCommand]] = {}  # by tenant
        self._submitted: dict[int, int] = {}  # the tenants of streams that are yet to begin
        # Those that stand in lines, by stream, as they came: of streams that have a place, and of others.
        self._cancels: dict[int, api.Cancel] = {}
        self._early: dict[int, api.Cancel] = {}
        # A heap of tenants that have a line, by how long each was served, and then by who waits longest.
        self._turns: list[tuple[float, int, int]] = []
        self._order = itertools.count()
        self._floor_s = 0.0  # nobody saves up: who joins counts as served as long as who was served least
        self._served_s: dict[int, float] = {}  # tenants that have no line, and were served for longer

    @property
    def empty(self) -> bool:
        return not (self._lines or self._arrived) and self._lists.empty()

    def put(self, commands: list[api.AnyCommand]) -> None:
        self._lists.put(commands)

    def wait(self, timeout_s: float | None = None) -> None:
        if not (self._lines or self._arrived):
            with suppress(Empty):
                self._arrived += self._lists.get(timeout=timeout_s)

    def put_back(self, tenant: int, commands: Several[api.AnyCommand]) -> None:
        if commands:
            self._line(tenant).extendleft(reversed(commands))

    def take(self, most_s: float, streams: Streams) -> Iterator[api.AnyCommand]:
        """Also what is put while the first are dealt with."""
        began_s = time.perf_counter()
        self._line_up(streams)
        while self._turns and (turn_began_s := time.perf_counter()) - began_s < most_s:
            self._floor_s, _, tenant = heappop(self._turns)
            line = self._lines[tenant]
            yield from self._next(line, streams)
            served_s = self._floor_s + time.perf_counter() - turn_began_s
            if line:
                heappush(self._turns, (served_s, next(self._order), tenant))
            else:
                del self._lines[tenant]
                self._served_s[tenant] = served_s
            self._line_up(streams)
        least_s = self._turns[0][0] if self._turns else math.inf  # where nobody waits all are even
        self._served_s = {
            tenant: served_s for tenant, served_s in self._served_s.items() if served_s > least_s
        }

    def _next(self, line: deque[api.AnyCommand], streams: Streams) -> Iterator[api.AnyCommand]:
        """With a rewind the stream's next, for which that may be; and no more of one stream's together, since
        its context may be very long."""
        goes_on = True
        while goes_on:
            command = line.popleft()
            if isinstance(command, api.Submit):
                self._submitted.pop(command.stream, None)
                yield from self._room(streams)
                if (cancel := self._early.pop(command.stream, None)) is not None:
                    self._cancels[command.stream] = cancel
            elif isinstance(command, api.Cancel):
                self._cancels.pop(command.stream, None)
            yield command
            rewinds = isinstance(command, api.Truncate)
            goes_on = rewinds and bool(line) and _stream(line[0]) == _stream(command)

    def _room(self, streams: Streams) -> Iterator[api.Cancel]:
        """For one more: a gateway gives a stream's place away when it has said that it is to end, and others
        may come to their turn before that does. In its line it does nothing then."""
        while self._cancels and streams.full:
            yield self._cancels.pop(next(iter(self._cancels)))

    def _line_up(self, streams: Streams) -> None:
        while not self._lists.empty():
            self._arrived += self._lists.get()
        for command in self._arrived:
            tenant = self._tenant(command, streams)
            if tenant is None:  # its stream has ended
                continue
            if isinstance(command, api.Submit):
                self._submitted[command.stream] = tenant
            elif isinstance(command, api.Cancel):
                early = command.stream in self._submitted
                (self._early if early else self._cancels)[command.stream] = command
            self._line(tenant).append(command)
        self._arrived.clear()

    def _tenant(self, command: api.AnyCommand, streams: Streams) -> int | None:
        if isinstance(command, api.Submit):
            return command.tenant
        stream = _stream(command)
        if stream is None:
            return NOBODY
        return self._submitted[stream] if stream in self._submitted else streams.tenant_of(stream)

    def _line(self, tenant: int) -> deque[api.AnyCommand]:
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = deque()
            served_s = max(self._floor_s, self._served_s.pop(tenant, 0.0))
            heappush(self._turns, (served_s, next(self._order), tenant))
        return line


def _stream(command: api.AnyCommand) -> int | None:
    return command.stream if isinstance(command, api.Command) else None
