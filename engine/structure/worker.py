"""A worker: one thread that does what it is given while whoever gave it does something else: what is whose in
its order, and of several owners' each in its turn, so that nobody waits for more than one piece of another's.

A piece that takes long gives way in its midst: it stands first in its owner's line again, its thread waits,
and another works meanwhile. So there are as many threads as owners with such pieces, and one of them works.
What takes long and cannot give way goes on as a piece of another worker, where such pieces are.

Its stack is deep: a grammar whose rules follow from one another is taken in by recursion, and a stranger says
how far. What a library of another language cannot survive comes as an exception that is no `Exception`, and
ends no more than the piece of work that it befell. Nor may a thread come back from that library when the
interpreter is gone: at the end it is waited for, as far as the next place at which it may give way.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any

STACK_BYTES = 64 << 20  # of addresses: memory is taken as it is used
TURN_S = 0.005  # that a piece has before it gives way
MOST_END_S = 2.0  # for which the process waits at its end: to compile a grammar takes half as long


Piece = Callable[[], bool]  # whether its thread goes on behind it


class Worker:
    def __init__(self, name: str, slow: Worker | None = None) -> None:
        """`slow`: where what takes long goes on."""
        self._name = name
        self._slow = slow
        self._lock = threading.Lock()
        self._lines: dict[object, deque[Piece]] = {}  # of owners, whose turn it is first
        self._given = SimpleQueue[None]()  # once for each piece
        self._begun = False  # when it is needed: a process may still be copied
        self._owner: object = None  # of the piece that is worked at
        self._turn_began_s = 0.0

    def submit(self, work: Callable[[], Any], owner: object = None) -> Future[Any]:
        self._begin()
        done = Future[Any]()
        self._put(partial(_do, work, done), owner)
        return done

    def _begin(self) -> None:
        with self._lock:
            if not self._begun:
                self._begin_thread()
                self._begun = True

    def _put(self, piece: Piece, owner: object) -> None:
        with self._lock:
            self._lines.setdefault(owner, deque()).append(piece)
        self._given.put(None)

    def give_way(self) -> None:
        """To others, if they wait and the piece that is worked at has had its turn."""
        if time.perf_counter() - self._turn_began_s < TURN_S:
            return
        owner, resumed = self._owner, threading.Event()
        with self._lock:
            if not self._lines.keys() - {owner}:
                return
            try:
                self._begin_thread()  # which waits for the lock
            except RuntimeError:  # there are as many as there may be: others wait, as behind any piece
                return
            line = self._lines.pop(owner, deque())
            line.appendleft(partial(_resume, resumed))
            self._lines[owner] = line
        self._given.put(None)
        with _away():
            resumed.wait()
        self._begin_turn(owner)

    def take_long(self) -> None:
        """What the piece that is worked at does now: it waits for its turn among what does."""
        if self._slow is None:
            return
        owner, resumed = self._owner, threading.Event()  # before another's piece is worked at
        try:
            self._slow._begin()
            self._begin_thread()
        except RuntimeError:  # as where it would give way
            return
        self._slow._put(partial(_resume, resumed), owner)
        with _away():
            resumed.wait()
        _of_thread.worker = self._slow
        self._slow._begin_turn(owner)

    def _begin_turn(self, owner: object) -> None:
        self._owner, self._turn_began_s = owner, time.perf_counter()

    def _next(self) -> Piece:
        self._given.get()
        with self._lock:
            owner, line = next(iter(self._lines.items()))
            piece = line.popleft()
            del self._lines[owner]
            if line:
                self._lines[owner] = line
        self._begin_turn(owner)
        return piece

    def _run(self) -> None:
        _of_thread.worker = self
        goes_on = True
        _at_work.add(threading.get_ident())
        while goes_on:
            with _away():
                piece = _of_thread.worker._next()  # which may be another's by then
            goes_on = piece()
            del piece  # and what it knows, as a grammar's share of memory: the next may be long in coming
        _at_work.discard(threading.get_ident())

    def _begin_thread(self) -> None:
        usual = threading.stack_size(STACK_BYTES)
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        finally:
            threading.stack_size(usual)


def give_way() -> None:
    """In the midst of what may take long; of no use where that is not done by a worker."""
    worker: Worker | None = getattr(_of_thread, "worker", None)
    if worker is not None:
        _stay_at_the_end()
        worker.give_way()


def take_long() -> None:
    """Before what does, and in whose midst nobody can give way."""
    worker: Worker | None = getattr(_of_thread, "worker", None)
    if worker is not None:
        worker.take_long()


def _do(work: Callable[[], Any], done: Future[Any]) -> bool:
    try:
        done.set_result(work())
    except BaseException as error:  # noqa: BLE001 - whoever waits for it is told
        done.set_exception(error)
    return True


def _resume(piece: threading.Event) -> bool:
    """Its own thread has the worker again."""
    piece.set()
    return False


@contextmanager
def _away() -> Iterator[None]:
    """Not at work meanwhile."""
    _at_work.discard(threading.get_ident())
    yield
    _at_work.add(threading.get_ident())
    _stay_at_the_end()


def _stay_at_the_end() -> None:
    """Whoever is at work does no more of it, once the process ends."""
    if _ending.is_set():
        _at_work.discard(threading.get_ident())
        threading.Event().wait()


@atexit.register
def _end() -> None:
    _ending.set()
    until_s = time.monotonic() + MOST_END_S
    while _at_work and time.monotonic() < until_s:
        time.sleep(0.001)


_of_thread = threading.local()
_at_work = set[int]()  # threads
_ending = threading.Event()
