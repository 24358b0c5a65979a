"""Blocks: which are in use, which hold what may be found again, and which are free.

A block is in exactly one of three states. *Used*: it is in some tables. *Cached*: nobody uses it, but it has
a name, and whoever asks for that finds it. *Free*: neither. `audit()` proves it.

What is cached is evicted in one order, the least recently used first and a chain's end before its beginning.
Where blocks lie is the business of `free_runs.py`: where tables should be runs of neighbours, some may be
evicted before they are needed, in that same order.

They are numbers here; the tensors behind them belong to the runner. They know names, and not what those are
made of; tables, and not whose.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from itertools import chain, islice

from engine import api
from engine.schedule.free_blocks import FreeBlocks, FreeList
from engine.schedule.free_runs import FreeRuns
from engine.schedule.idle_blocks import IdleBlocks
from engine.schedule.name_news import NameNews
from engine.schedule.windows import GONE, first_held

PIECE = 256  # tokens that attention reads as one, where it reads slices
EVICTED_TOGETHER = 32  # blocks, before it is looked again whether they were enough


class Blocks:
    def __init__(self, count: int, block_size: int, *, runs: bool) -> None:
        # Tables that a block is in; below 0 it is free, and its memory idle (`idle_blocks.py`).
        self.refs = [0] * count
        self._names: list[bytes | None] = [None] * count
        self._named = bytearray(count)  # whether it has a name: of a million blocks a byte is sooner read
        self._by_name: dict[bytes, int] = {}
        self._cached: OrderedDict[int, float] = OrderedDict()  # since when; least recently used first
        self._free: FreeBlocks = FreeRuns(self.refs, max(1, PIECE // block_size)) if runs else FreeList(count)
        self._idle = IdleBlocks(self.refs)
        self.news = NameNews()
        self.now = 0.0  # as we were last told

    @property
    def total(self) -> int:
        return len(self.refs)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def available(self) -> int:
        """To be taken: what is cached is evicted for it."""
        return len(self._free) + len(self._cached)

    # -- use -------------------------------------------------------------------------------------

    def take(self, count: int, table: list[int]) -> list[int]:
        """So many, which are available, for the end of a table: behind its last, where those are free."""
        taken: list[int] = []
        held = 0
        if table:
            held = len(table) - first_held(table)
            if table[-1] != GONE:
                taken += self._free.take_behind(table[-1], count)
        if missing := count - len(taken):
            if self._cached:
                self._make_room(missing)
            more = self._free.take(missing, len(table) + len(taken), held + len(taken))
            taken = taken + more if taken else more
        refs = self.refs
        for number in taken:
            refs[number] = 1
        return taken

    def use(self, name: bytes) -> int:
        """The block with this name, which there is, is in one table more."""
        number = self._by_name[name]
        self._cached.pop(number, None)
        self.refs[number] += 1
        return number

    def drop(self, numbers: list[int]) -> None:
        """A table's end is in it no longer. What nobody else uses is cached, or free."""
        refs, named, cached, now = self.refs, self._named, self._cached, self.now
        period = self._idle.period
        free: list[int] = []
        # Last block first: what is evicted first from the cache should be a chain's end, not its beginning.
        for number in reversed(numbers):
            left = refs[number] - 1
            if left:
                refs[number] = left
            elif named[number]:
                refs[number] = 0
                cached[number] = now
            else:
                refs[number] = period
                free.append(number)
        if free:
            self._idle.last = now
            self._free.give(free)

    def _make_room(self, count: int) -> None:
        free = self._free
        if len(free) < count:
            self._evict(count - len(free))
        while self._cached and len(free) < count + free.most_ahead and not free.fits(count):
            self._evict(min(free.most_ahead, EVICTED_TOGETHER))

    def _evict(self, count: int) -> None:
        self._give(self._forget_oldest(count))

    def _forget_oldest(self, count: int) -> list[int]:
        """So many of the cached, if there are: they are in no state, until they are free."""
        numbers = [self._cached.popitem(last=False)[0] for _ in range(min(count, len(self._cached)))]
        self._unname(numbers)
        return numbers

    def _unname(self, numbers: list[int]) -> None:
        """Nobody finds these any more."""
        names, named, by_name = self._names, self._named, self._by_name
        gone = [name for number in numbers if (name := names[number])]
        for number in numbers:
            names[number] = None
            named[number] = False
        for name in gone:
            del by_name[name]
        self.news.went(gone)

    def _give(self, numbers: list[int]) -> None:
        """They are free, and hold memory until nobody has taken them for a while."""
        self._idle.add(numbers, self.now)
        self._free.give(numbers)

    # -- names -----------------------------------------------------------------------------------

    def take_news(self) -> api.BlockNews | None:
        """Which names have come and gone, if anybody asked."""
        return self.news.take(self._by_name)

    def find(self, name: bytes) -> int | None:
        """The block with this name."""
        return self._by_name.get(name)

    def own_name(self, name: bytes) -> bytes:
        """The one that the block has by which this is found; where there is none, the name itself."""
        number = self._by_name.get(name)
        return name if number is None else self._names[number] or name

    def has(self, name: bytes) -> bool:
        return name in self._by_name

    def has_name(self, number: int) -> bool:
        return bool(self._named[number])

    def is_cached(self, number: int) -> bool:
        return number in self._cached

    def name(self, number: int, name: bytes) -> bool:
        """It can be found from now on, unless another has this name, or it has one; returns whether it is
        what has it."""
        if name not in self._by_name and not self._named[number]:
            self._by_name[name] = number
            self._names[number] = name
            self._named[number] = True
            self.news.came(name)
            return True
        return self._by_name.get(name) == number

    def forget(self, number: int) -> None:
        """Nobody finds it any more; if nobody uses it, it is free."""
        if not self._named[number]:
            return
        self._unname([number])
        if not self.refs[number]:
            del self._cached[number]
            self._give([number])

    # -- those that nobody has used for a while ----------------------------------------------------

    @property
    def idle_since(self) -> float | None:
        """Nobody has been idle for longer; None where only blocks in use hold memory."""
        cached = next(iter(self._cached.values()), None)
        return min((since for since in (cached, self._idle.since) if since is not None), default=None)

    def take_idle(self, until: float, group: int, most: int) -> list[int]:
        """Forget of the cached, and take of the free, about `most` that nobody has used since `until`.

        Returns the groups, of `group` neighbours each, that hold nothing any more. A group that is held by
        one of its blocks is returned behind the last.
        """
        ripe = self._forget_oldest(sum(since <= until for since in islice(self._cached.values(), most)))
        self._free.give(ripe)
        ripe += self._idle.take(self.now, until, most - len(ripe))
        return [at for at in sorted({number // group for number in ripe}) if self._holds_nothing(at, group)]

    def _holds_nothing(self, at: int, group: int) -> bool:
        neighbours = range(at * group, min((at + 1) * group, self.total))
        return not any(self.refs[number] or number in self._cached for number in neighbours)

    # -- proof -----------------------------------------------------------------------------------

    def audit(self, owners: Counter[int]) -> None:
        """Raise unless every block is accounted for exactly once. `owners`: the tables that each is in."""
        used = {number: refs for number, refs in enumerate(self.refs) if refs > 0}
        assert used == owners, f"blocks, by references and by tables: {used.items() ^ owners.items()}"
        states, once = sorted(chain(used, self._cached, self._free)), list(range(self.total))
        assert states == once, f"free, cached or used: {Counter(states).items() ^ Counter(once).items()}"
        assert len(used) + len(self._cached) + len(self._free) == self.total
        assert all(self._names[number] for number in self._cached), "a block is cached without a name"
        assert self._by_name == {name: number for number, name in enumerate(self._names) if name}
        assert [*map(bool, self._names)] == [*map(bool, self._named)]
        self._idle.audit()
