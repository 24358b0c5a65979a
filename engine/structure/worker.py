"""A worker: one thread that does what it is given while whoever gave it does something else: what is whose in
its order, and of several owners' each in its turn, so that nobody waits for more than one piece of another's.

Its stack is deep: a grammar whose rules follow from one another is taken in by recursion, and a stranger says
how far. What a library of another language cannot survive comes as an exception that is no `Exception`, and
ends no more than the piece of work that it befell.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

STACK_BYTES = 64 << 20  # of addresses: memory is taken as it is used


Piece = tuple[Callable[[], Any], Future[Any]]


class Worker:
    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._lines: dict[object, deque[Piece]] = {}  # of owners, whose turn it is first
        self._given = SimpleQueue[None]()  # once for each piece
        self._thread: threading.Thread | None = None  # begun when it is needed: a process may still be copied

    def submit(self, work: Callable[[], Any], owner: object = None) -> Future[Any]:
        if self._thread is None:
            self._thread = _begin_with_deep_stack(self._run, self._name)
        done = Future[Any]()
        with self._lock:
            self._lines.setdefault(owner, deque()).append((work, done))
        self._given.put(None)
        return done

    def _next(self) -> Piece:
        self._given.get()
        with self._lock:
            owner, line = next(iter(self._lines.items()))
            piece = line.popleft()
            del self._lines[owner]
            if line:
                self._lines[owner] = line
            return piece

    def _run(self) -> None:
        while True:
            work, done = self._next()
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - whoever waits for it is told
                done.set_exception(error)
            del work, done  # or it would be kept until there is more to do


def _begin_with_deep_stack(run: Callable[[], None], name: str) -> threading.Thread:
    usual = threading.stack_size(STACK_BYTES)
    try:
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
    finally:
        threading.stack_size(usual)
    return thread
