"""A matcher: one grammar, followed along one stream's tokens; what it forces, and what it allows, next.

A stream may begin its grammar anew, so there are *runs* along it, each from its own beginning; only the last
advances, and whoever goes back behind its beginning is in the one before. There may be as many as tokens, so
only the last is held by the library; of the others the tokens are kept, and followed again. An end token,
where the grammar may end, ends the run: nothing is asked of what follows it.

It works where it is called, and may take long; `constraint.py` has it work in a thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Several
from typing import TypeVar

from llguidance import LLMatcher

from engine.foresight.source import is_foreseen
from engine.structure.compiler import (
    FIRST_FUEL,
    MOST_FUEL,
    ahead,
    matcher_of,
    needs_more_fuel,
    needs_more_states,
    needs_wider_rows,
    reason_of,
)
from engine.structure.follower import Follower
from engine.structure.matcher_memory import MOST_STATES, MOST_WIDTH, MatcherMemory, MemoryShare
from engine.structure.vocabulary import Vocabulary
from engine.structure.worker import take_long

ALLOWED = 200  # a mask's byte of a token that may come
MOST_FORCED = 1024  # bytes whose tokens are asked for: meanwhile nobody else has the interpreter, for 0.5 ms
NO_ROOM = (
    "The grammar has come to take more memory than is left for those of your streams: try again when some of "
    "them have ended."
)

T = TypeVar("T")


class GrammarError(Exception):
    """A grammar that cannot be gone on with: a sentence for whoever sent it."""


class _Run:
    def __init__(self) -> None:
        self.inside = array("i")  # its tokens, up to the end token
        self.text_bytes = 0  # of those
        self.behind_end = 0  # tokens from that on

    def without(self, last: int) -> _Run:
        """Another, that lacks so many of the last."""
        again, behind = _Run(), min(last, self.behind_end)
        again.inside = self.inside[: len(self.inside) - (last - behind)]
        again.behind_end = self.behind_end - behind
        return again


class Matcher:
    def __init__(
        self,
        source: str,
        vocabulary: Vocabulary,
        later: str | None = None,
        share: MemoryShare | None = None,
        follower: Follower | None = None,
    ) -> None:
        """`later`: the source of the runs behind the first, if that is another."""
        self._share = share or MatcherMemory().share()
        self._vocabulary = vocabulary
        self._ends = vocabulary.ends
        self._sources = (source, later or source)
        self._foreseen = (is_foreseen(source), is_foreseen(later or source))
        self._follower = follower or Follower()
        self._fuel = FIRST_FUEL
        self._goes_back = True  # until it has turned out that the library cannot
        self._fresh: dict[str, LLMatcher] = {}
        self._runs = [_Run()]
        self._followed: LLMatcher | None = None  # the last run, once it is asked about
        self._drafts: tuple[int, ...] = ()
        self._begun(source)

    @property
    def takes_long(self) -> bool:
        """As the last token did that it followed."""
        return self._follower.takes_long

    def _begun(self, source: str) -> LLMatcher:
        fresh = self._fresh.get(source)
        while fresh is None or self._lacks(fresh):
            if fresh is not None:
                self._grow(fresh)
            share = self._share
            take_long()
            self._follower.check()
            fresh = matcher_of(source, self._vocabulary.tokenizer, share.states, share.width, self._fuel)
        self._fresh[source] = fresh
        self._check(fresh)
        return fresh

    def _grow(self, matcher: LLMatcher) -> None:
        """Have more of what it lacks, and follow anew from the beginning."""
        if needs_more_fuel(matcher):
            self._fuel *= 2
            self._follower.takes_long = True
        else:
            more = self._share.add_states if needs_more_states(matcher) else self._share.widen
            if not more() or not self._share.follow(self._runs[-1].text_bytes):
                raise GrammarError(NO_ROOM)
        self._fresh.clear()
        self._followed = None

    @property
    def _matcher(self) -> LLMatcher:
        while self._followed is None:
            self._followed = self._begun(self._source).deep_copy()
            if self._follower.follow(self._followed, self._runs[-1].inside):
                break
            if not self._lacks(self._followed):
                raise self._error(self._followed)
            self._grow(self._followed)
        return self._followed

    @property
    def _source(self) -> str:
        return self._sources[len(self._runs) > 1]

    @property
    def _is_foreseen(self) -> bool:
        return self._foreseen[len(self._runs) > 1]

    def _ask(self, question: Callable[[LLMatcher], T]) -> T:
        """Again, where it takes more to answer."""
        while True:
            matcher = self._matcher
            answer = question(matcher)
            if not self._lacks(matcher):
                return answer
            self._grow(matcher)

    def _lacks(self, matcher: LLMatcher) -> bool:
        """Memory, or work in one step: whoever follows anew, and has no masks behind it, has more of that to
        do at once. And not what no grammar may have."""
        states, width = self._share.states, self._share.width
        if states < MOST_STATES and needs_more_states(matcher):
            return True
        if width < MOST_WIDTH and needs_wider_rows(matcher):
            return True
        return self._fuel < MOST_FUEL and needs_more_fuel(matcher)

    def accept(self, tokens: list[int]) -> None:
        run = self._runs[-1]
        inside = 0 if run.behind_end else self._until_end(tokens)
        for token in tokens[:inside]:
            self._consume(token)
            run.inside.append(token)
        if inside < len(tokens) and not run.behind_end and not self._matcher.is_accepting():
            raise GrammarError("The grammar may not end where the stream did.")
        run.behind_end += len(tokens) - inside

    def _consume(self, token: int) -> None:
        if not self._ask(lambda matcher: self._follower.follow(matcher, (token,))):
            raise self._error(self._matcher)
        self._runs[-1].text_bytes += self._length_of([token])
        if not self._share.follow(self._runs[-1].text_bytes):
            raise GrammarError(NO_ROOM)

    def _length_of(self, tokens: list[int]) -> int:
        return len(self._vocabulary.tokenizer.decode_bytes(tokens))

    def would_fit(self, tokens: list[int], *, dropped: int, void: int) -> bool:
        """Whether they might come next if so many runs were dropped, and so many of the last tokens void."""
        stand = self._runs
        self._runs = [*stand[: len(stand) - dropped - 1], stand[-1 - dropped].without(void)]
        self._followed = None
        try:
            return self.fits(tokens)
        finally:
            self._runs, self._followed = stand, None

    def fits(self, tokens: list[int]) -> bool:
        """Whether they may come next, one after the other."""
        run = self._runs[-1]
        if run.behind_end:
            return True
        return self._ask(lambda matcher: self._would_follow(matcher, tokens))

    def _would_follow(self, matcher: LLMatcher, tokens: list[int]) -> bool:
        inside = self._until_end(tokens)
        followed = next((at for at in range(inside) if not self._try(matcher, tokens[at])), inside)
        fits = followed == inside and (inside == len(tokens) or matcher.is_accepting())
        if matcher.is_error():
            self._followed = None  # what is not put in leaves nothing behind
        else:
            self._go_back(followed)
        return fits

    def _try(self, matcher: LLMatcher, token: int) -> bool:
        """Follow it if it may come."""
        if self._follower.takes_long:  # where it may not there would be an error, which stays
            return matcher.compute_logit_bias()[token] == ALLOWED and self._follower.follow(matcher, (token,))
        return bool(matcher.validate_tokens([token])) and self._follower.follow(matcher, (token,))

    def back(self, count: int) -> None:
        """The last tokens of this run are void."""
        run = self._runs[-1]
        behind = min(count, run.behind_end)
        run.behind_end -= behind
        if count > behind:
            run.text_bytes -= self._length_of(run.inside[behind - count :].tolist())
            del run.inside[behind - count :]
            self._go_back(count - behind)

    def _go_back(self, count: int) -> None:
        """Grammars that count tokens, or stop at a text, the library follows forward alone: anew, then."""
        if count and self._followed is not None and not self._followed.rollback(count):
            self._followed, self._goes_back = None, False

    def begin_anew(self) -> None:
        self._runs.append(_Run())
        self._followed = None

    def drop_run(self) -> None:
        """It goes on where the run before stopped."""
        self._runs.pop()
        self._followed = None

    def mask(self) -> bytes | None:
        """A byte for each token: whether it may come next. None where nothing is asked."""
        run = self._runs[-1]
        if run.behind_end:
            return None
        mask = self._ask(lambda matcher: matcher.compute_logit_bias())
        self._check(self._matcher)
        self._look_ahead(self._matcher)
        return mask

    def _look_ahead(self, matcher: LLMatcher) -> None:
        """What must come next is followed with a mask, and stays in its memory, where the library follows any
        of it. Raises GrammarError."""
        if not self._is_foreseen:
            return
        if not self._share.look_ahead(ahead(matcher)):
            raise GrammarError(NO_ROOM)

    def expect(self, drafts: tuple[int, ...]) -> None:
        """These may come next: the masks behind each are asked for."""
        self._drafts = drafts

    def masks_ahead(self) -> list[bytes | None]:
        """The masks behind each draft, of which nothing stays behind. None behind one that cannot come, which
        nobody gets to, or that ends the run; and there are fewer where more memory would be taken, or more
        work in one step: only what came may have that. There are none where going back is following anew."""
        drafts, self._drafts = self._drafts, ()
        if not drafts or self._runs[-1].behind_end:
            return [None] * len(drafts)
        if not self._goes_back:
            return []
        matcher = self._matcher
        masks: list[bytes | None] = []
        for draft in drafts[: self._until_end(drafts)]:
            if not self._try(matcher, draft):
                break
            masks.append(matcher.compute_logit_bias())
            try:
                self._look_ahead(matcher)
            except GrammarError:  # which is for the token that comes to it
                self._followed = None
                return masks[:-1]
        if matcher.is_error():
            self._followed = None
            return masks[:-1]
        self._go_back(len(masks))
        return masks + [None] * (len(drafts) - len(masks))

    def forced(self, mask: bytes | None) -> list[int]:
        """The tokens that must come next, where the mask leaves one: that, and what follows of itself.

        To ask for those keeps the interpreter for as long as it takes: nobody asks where there is a choice,
        nor where they are many, or may be endless. What the bytes are the mask has found.
        """
        only = -1 if mask is None else mask.find(ALLOWED)
        if mask is None or only < 0 or mask.find(ALLOWED, only + 1) >= 0:
            return []
        if not self._is_foreseen or ahead(self._matcher) > MOST_FORCED:
            return [only]
        tokens = self._ask(lambda matcher: matcher.compute_ff_tokens())
        self._check(self._matcher)
        return tokens or [only]

    def _until_end(self, tokens: Several[int]) -> int:
        return next((at for at, token in enumerate(tokens) if token in self._ends), len(tokens))

    def _check(self, matcher: LLMatcher) -> None:
        if matcher.is_error():
            raise self._error(matcher)

    def _error(self, matcher: LLMatcher) -> GrammarError:
        return GrammarError(f"The grammar cannot be followed any further: {reason_of(matcher)}.")
