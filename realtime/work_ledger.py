"""The ledger of the event loop's time: whoever has work done there pays for all of it in one place, however
many connections and requests it comes by, and others have their turn between its pieces.

It knows payers by some name and seconds of work, and neither what the work is nor what a connection is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from functools import partial
from hashlib import blake2b
from typing import TypeVar
from weakref import WeakValueDictionary

from realtime.pieces import Pieces
from realtime.work_budget import SHARE, WorkBudget

FEW = 1_000  # payers that are remembered without a look at who of them has paid

T = TypeVar("T")


class PayerWork:
    """Of one payer: piece after piece, each in its turn."""

    def __init__(self, share: float = SHARE, number: int = 0) -> None:
        self.number = number  # by which engines know the payer
        self._budget = WorkBudget(time.monotonic(), share)
        self._line = asyncio.Lock()
        self._turn_over = False

    @property
    def is_free(self) -> bool:
        """Whether more may be done for it at once: nothing is owed, and nothing waits."""
        return not (self._turn_over or self._line.locked() or self.debt_s)

    @property
    def is_unspent(self) -> bool:
        return not self._line.locked() and self._budget.is_unspent(time.monotonic())

    @property
    def debt_s(self) -> float:
        """How long until all that was done for it is paid for."""
        return self._budget.debt_s(time.monotonic())

    async def do(self, piece: Callable[[], T], price_s: float = 0.0) -> T:
        """Do a piece of work when it is its turn. `price_s` is for what it has others do, beside its own
        time."""
        async with self._line:
            # Of one that was given up while it paid, or that took effect later.
            if self._turn_over or self.debt_s:
                await asyncio.sleep(self.debt_s)
            began_s = time.thread_time()
            try:
                return piece()
            finally:
                await self.pay(time.thread_time() - began_s + price_s)

    async def finish(self, work: Pieces[T]) -> T:
        """Do all of it, piece by piece."""
        while True:
            ended = await self.do(partial(_go_on, work))
            if ended is not None:
                return ended[0]

    def owe(self, work_s: float) -> float | None:
        """For what was done: it is paid for before more is. How long that takes, if others are to have their
        turn now."""
        wait_s = self._budget.pay(work_s, time.monotonic())
        if wait_s is not None and not self._turn_over:
            self._turn_over = True
            asyncio.get_running_loop().call_soon(self._begin_turn)
        return wait_s

    async def pay(self, work_s: float) -> None:
        """For what was done: returns when others have had their turn."""
        wait_s = self.owe(work_s)
        if wait_s is not None:
            await asyncio.sleep(wait_s)

    def _begin_turn(self) -> None:
        self._turn_over = False


def _number(payer: Hashable) -> int:
    """The same at each gateway that the payer comes to."""
    return int.from_bytes(blake2b(repr(payer).encode(), digest_size=8).digest()) >> 1


def _go_on(work: Pieces[T]) -> tuple[T] | None:
    try:
        next(work)
    except StopIteration as done:
        return (done.value,)
    return None


class WorkLedger:
    """Of all payers. Whoever has paid for all, and is here no longer, is forgotten."""

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._here = WeakValueDictionary[Hashable, PayerWork]()
        self._kept: dict[Hashable, PayerWork] = {}  # those who owe among them, however soon they come again
        self._many = FEW

    def __len__(self) -> int:
        return len(self._here)

    def of(self, payer: Hashable) -> PayerWork:
        work = self._here.get(payer)
        if work is None:
            self._forget_unspent()
            work = self._here[payer] = PayerWork(self._share, _number(payer))
        self._kept[payer] = work
        return work

    def _forget_unspent(self) -> None:
        if len(self._kept) >= self._many:
            self._kept = {payer: work for payer, work in self._kept.items() if not work.is_unspent}
            self._many = max(FEW, 2 * len(self._kept))
