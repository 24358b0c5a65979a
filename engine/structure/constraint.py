"""A constraint: a stream's grammar as its sequence holds it, worked at in threads.

Whatever happens to the stream's tokens is noted here at once, and costs nothing; the threads then have the
matcher follow, and the *outlook* is what came of it: what is forced next, what is allowed, or why the grammar
cannot be gone on with. There are three threads: what took long once waits behind what takes long, and a
grammar that was just begun, which is to be compiled, behind others of that kind; of several tenants each in
its turn.

It knows positions among a stream's tokens, and tokens. It knows no sequence and no step.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_right
from collections.abc import Callable
from collections.abc import Sequence as Several
from operator import itemgetter

from engine.structure.follower import Follower
from engine.structure.matcher import GrammarError, Matcher
from engine.structure.matcher_memory import MemoryShare
from engine.structure.vocabulary import Vocabulary

LONG_S = 0.002  # of a processor's time, for one token: others' need not wait behind it, nor behind the next

Change = Callable[[Matcher], object]


class Outlook:
    """What comes next: written by a thread, and read when it is `known`."""

    __slots__ = ("error", "fits", "forced", "known", "mask", "masks_ahead")

    def __init__(self) -> None:
        self.known = False
        self.forced: list[int] = []
        self.fits = True  # the tokens that were asked about
        self.mask: bytes | None = None  # a byte for each token; None where nothing is asked of it
        self.masks_ahead: list[bytes | None] = []  # behind each draft, as far as they are known
        self.error: str | None = None

    def fail(self, error: BaseException) -> None:
        self.error = _sentence(error)


class Constraint:
    """`start`: where among the stream's tokens the grammar begins, which may be another where it begins anew:
    `later`. `changed` is called, in the caller's
    thread, when there is work to do."""

    def __init__(
        self,
        source: str,
        vocabulary: Vocabulary | None,
        start: int,
        changed: Callable[[], None],
        later: str | None = None,
        share: MemoryShare | None = None,
    ) -> None:
        self.source, self._later = source, later
        self.known = False  # since it was looked at: whether the outlook is that of the tokens that stand
        self.slow = False
        self.took_s = 0.0  # of a processor's time, when it was followed last
        self.outlook = Outlook()
        self._vocabulary = vocabulary
        self._share = share
        self._runs = [(start, start)]  # of each beginning: where it is, and how far the matcher went from it
        self._changes: list[Change] = []  # that the matcher has not been told of
        self._submitted = False
        self._matcher: Matcher | None = None  # the threads'
        self._error: str | None = None  # of a change that it could not follow
        self._follower = Follower()
        self._changed = changed
        changed()

    @property
    def due(self) -> bool:
        """Whether there is work to do, and none under way that might be done in the other thread."""
        return not self._submitted or (bool(self._changes) and self.outlook.known)

    @property
    def followed_all(self) -> bool:
        """By now: whether the outlook is that of the tokens that stand."""
        return self._submitted and not self._changes and self.outlook.known

    def look(self) -> None:
        """What is known now is known until the tokens change: not whenever a thread comes to its end."""
        self.known = self.followed_all

    def tell(self, outlook: Outlook) -> None:
        """What was found elsewhere, of the tokens that stand."""
        self._changes.clear()
        self.outlook, self.known = outlook, True

    @property
    def compiled(self) -> bool:
        return self._matcher is not None

    # -- the stream's tokens -----------------------------------------------------------------------

    def append(self, tokens: Several[int], position: int) -> None:
        """They stand behind the others, from `position` on: what stands before the grammar is not its
        own. Until a thread comes to it they are numbers, and no objects: they may be a very long context."""
        start, reached = self._runs[-1]
        own = array("i", tokens[max(0, start - position) :])
        if own:
            self._runs[-1] = (start, reached + len(own))
            self._change(lambda matcher: matcher.accept(own))

    def truncate(self, length: int) -> None:
        """Only so many tokens of the stream stand. A grammar that began behind them begins there."""
        dropped, void = self._beyond(length)
        for _ in range(dropped):
            self._runs.pop()
            self._change(Matcher.drop_run)
        start, reached = self._runs[-1]
        if void:
            self._change(lambda matcher: matcher.back(void))
        self._runs[-1] = (min(start, length), min(reached, length))

    def begin_anew(self, position: int) -> None:
        """The grammar has another beginning, there."""
        self._runs.append((position, position))
        self._change(Matcher.begin_anew)

    def ask(self, tokens: list[int], *, length: int) -> None:
        """Whether they would fit if only so many tokens of the stream stood: the outlook will say."""
        dropped, void = self._beyond(length)
        if dropped or void:
            self._change(lambda matcher: matcher.would_fit(tokens, dropped=dropped, void=void))
        else:
            self._change(lambda matcher: matcher.fits(tokens))

    def followed(self, length: int) -> int:
        """How many tokens it would have followed if only so many of the stream stood: fewer where the last of
        those were put in for it to begin anew behind them, and so are not yet its own."""
        dropped, _ = self._beyond(length)
        return min(length, max(self._runs[-1 - dropped]))

    def expect(self, drafts: tuple[int, ...]) -> None:
        """They may come next: the outlook will tell the masks behind each."""
        self._change(lambda matcher: matcher.expect(drafts))

    def _beyond(self, length: int) -> tuple[int, int]:
        """How many runs begin behind so many tokens, and how many tokens of the one before them are void
        then. The first begins there, where it begins behind them."""
        dropped = len(self._runs) - bisect_right(self._runs, length, lo=1, key=itemgetter(0))
        start, reached = self._runs[-1 - dropped]
        return dropped, max(0, reached - max(start, length))

    def _change(self, change: Change) -> None:
        self.known = False
        self._changes.append(change)
        self._changed()

    def give_up(self) -> None:
        """Nobody asks for its outlook any more: what is under way need not come to its end."""
        self._follower.give_up()

    # -- the threads' work -------------------------------------------------------------------------

    def let_go(self) -> None:
        """It was given up. What a matcher has is many small pieces of memory, and some of a megabyte: to give
        them back takes a millisecond, and of hundreds of streams that end at once a fifth of a second."""
        self._matcher = None

    def submit(self) -> Callable[[], None]:
        """What is to be done in a thread, until the outlook is known."""
        changes, self._changes = self._changes, []
        outlook = self.outlook = Outlook()
        self._submitted = True

        def follow() -> None:
            matcher, began = self._matcher, time.thread_time()
            made = 0 if matcher is None else matcher.masks_made
            try:
                self._follow(changes, outlook)
            except BaseException as error:  # noqa: BLE001 - it ends its own stream
                outlook.fail(error)
            self.took_s = time.thread_time() - began
            if matcher is not None:  # and it was compiled before
                long_s = LONG_S * max(1, matcher.masks_made - made)
                elsewhere = matcher.takes_long  # in the library's thread
                self.slow = self.slow or self.took_s > long_s or elsewhere
            outlook.known = True

        return follow

    def _follow(self, changes: list[Change], outlook: Outlook) -> None:
        if self._error is not None:
            raise GrammarError(self._error)
        self._follower.check()  # where it was let go, none is compiled anew
        if self._matcher is None:
            if self._vocabulary is None:
                raise GrammarError("This model's tokens have no bytes that a grammar could be followed by.")
            self._matcher = Matcher(self.source, self._vocabulary, self._later, self._share, self._follower)
        for change in changes:
            outlook.fits &= self._told(change)
        outlook.mask = self._matcher.mask()
        outlook.forced = self._matcher.forced()
        outlook.masks_ahead = self._matcher.masks_ahead()

    def _told(self, change: Change) -> bool:
        """False where tokens would not fit. Behind one that it could not follow the matcher stands elsewhere
        than the stream, wherever that goes: what it would say then is of another text."""
        assert self._matcher is not None
        try:
            return change(self._matcher) is not False
        except BaseException as error:
            self._error = _sentence(error)  # the error itself knows this: all of it would wait to be garbage
            raise


def _sentence(error: BaseException) -> str:
    known = isinstance(error, GrammarError)
    return str(error) if known else "The grammar cannot be followed: its matcher failed."
