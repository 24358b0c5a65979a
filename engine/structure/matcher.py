"""A matcher: one grammar, followed along one stream's tokens; what it forces, and what it allows, next.

A stream may begin its grammar anew, so there are *runs* along it, each from its own beginning; only the last
advances, and whoever goes back behind its beginning is in the one before. There may be as many as tokens, so
only the last is held by the library; of the others the tokens are kept, and followed again. An end token,
where the grammar may end, ends the run: nothing is asked of what follows it.

It works where it is called, and may take long; `constraint.py` has it work in a thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Several
from typing import TypeVar

from llguidance import LLMatcher

from engine.structure.compiler import (
    FIRST_FUEL,
    MOST_FUEL,
    goes_back,
    gone_back,
    matcher_of,
    needs_more_fuel,
    needs_more_states,
    needs_wider_rows,
    reason_of,
    stopped_at_items,
    why_stopped,
    work_of,
)
from engine.structure.follower import Follower
from engine.structure.forced_text import ForcedText
from engine.structure.mask import ALLOWED, allowed, alone
from engine.structure.matcher_memory import MOST_STATES, MOST_WIDTH, MatcherMemory, MemoryShare
from engine.structure.vocabulary import Vocabulary
from engine.structure.worker import take_long

WEIGHED = 2_000_000  # expressions that lexers may have worked at before it is looked at how many they have
# What they keep of each, as measured: in a step, and as they are compiled, where that is 8 to 20 of a class
# of letters, or of terminals that are joined, as `A & B`. A character of a source takes 10 to 90 beside.
WORKED_BYTES, COMPILED_BYTES, SOURCE_BYTES = 2, 12, 50
MOST_FORCED = 128  # bytes that are looked for at once, each in some 10 microseconds
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
        self._follower = follower or Follower()
        self._fuel = FIRST_FUEL
        self._fresh: dict[str, LLMatcher] = {}
        self._forward_alone = set[str]()  # sources
        self._runs = [_Run()]
        self._followed: LLMatcher | None = None  # the last run, once it is asked about
        self._beginning: LLMatcher | None = None  # that it, or the one before it, was copied from
        self._drafts: tuple[int, ...] = ()
        self._follows_drafts = True  # unless that took more than it has
        self._forced: list[int] = []  # the tokens that must come next, as far as they were looked for
        self._compiled_work: dict[str, int] = {}  # of those that are fresh, in expressions
        self._unweighed = 0  # expressions behind that, at most
        self.masks_made = 0
        self._begun(source)

    @property
    def takes_long(self) -> bool:
        """As the last token did that it followed."""
        return self._follower.takes_long

    def _begun(self, source: str) -> LLMatcher:
        if source in self._fresh:
            return self._fresh[source]
        fresh, tried = self._compiled(source)
        while self._lacks(stopped := why_stopped(tried, fresh)):
            self._grow(stopped)
            fresh, tried = self._compiled(source)
        self._check(fresh)
        self._fresh[source] = fresh
        self._compiled_work[source] = work_of(fresh)
        self._weigh()
        if not goes_back(tried):
            self._forward_alone.add(source)
        return fresh

    def _compiled(self, source: str) -> tuple[LLMatcher, LLMatcher]:
        """At its beginning; and so it was tried."""
        share = self._share
        take_long()
        self._follower.check()
        fresh = matcher_of(source, self._vocabulary.tokenizer, share.states, share.width, self._fuel)
        return fresh, fresh if fresh.is_error() else gone_back(fresh)

    def _grow(self, matcher: LLMatcher) -> None:
        """Have more of what it lacks, and follow anew from the beginning."""
        if needs_more_states(matcher) or needs_wider_rows(matcher):
            more = self._share.add_states if needs_more_states(matcher) else self._share.widen
            if not more() or not self._share.follow(self._runs[-1].text_bytes):
                raise GrammarError(NO_ROOM)
        else:
            self._fuel = min(2 * self._fuel, MOST_FUEL)
            self._follower.takes_long = self._follower.asks_first = True
        self._follows_drafts = True
        self._forget_lexers()

    def _forget_lexers(self) -> None:
        """And what they keep: of the same grammar others are compiled."""
        self._fresh.clear()
        self._compiled_work.clear()
        self._followed = self._beginning = None
        self._share.lexer_bytes = 0

    def _worked(self) -> None:
        """For a token, or for a mask."""
        self._unweighed += self._fuel
        if self._unweighed > WEIGHED:
            self._weigh()

    def _weigh(self) -> None:
        """What lexers have come to. Raises GrammarError where there is no room for it."""
        self._unweighed = 0
        lexers = self._fresh.items()
        kept = sum(_kept(source, self._compiled_work[source], work_of(fresh)) for source, fresh in lexers)
        if not self._share.keep(kept):
            self._forget_lexers()
            raise GrammarError(NO_ROOM)

    @property
    def _matcher(self) -> LLMatcher:
        while self._followed is None:
            self._beginning = self._begun(self._source)
            self._followed = self._beginning.deep_copy()
            if self._follow(self._followed, self._runs[-1].inside):
                break
            stopped = why_stopped(self._followed, self._beginning)
            if not self._lacks(stopped):
                raise self._error(stopped)
            self._grow(stopped)
        return self._followed

    @property
    def _source(self) -> str:
        return self._sources[len(self._runs) > 1]

    def _ask(self, question: Callable[[LLMatcher], T]) -> T:
        """Again, where it takes more to answer."""
        while True:
            matcher, beginning = self._matcher, self._beginning
            answer = question(matcher)
            stopped = why_stopped(matcher, beginning)
            if not self._lacks(stopped):
                return answer
            self._grow(stopped)

    def _lacks(self, matcher: LLMatcher) -> bool:
        """Memory, or work in one step: whoever follows anew, and has no masks behind it, has more of that to
        do at once. And not what no grammar may have."""
        states, width = self._share.states, self._share.width
        if states < MOST_STATES and needs_more_states(matcher):
            return True
        if width < MOST_WIDTH and needs_wider_rows(matcher):
            return True
        return (self._fuel < MOST_FUEL or not self._follower.asks_first) and needs_more_fuel(matcher)

    def accept(self, tokens: Several[int]) -> None:
        run = self._runs[-1]
        inside = 0 if run.behind_end else self._until_end(tokens)
        for token in tokens[:inside]:
            self._consume(token)
            run.inside.append(token)
        if inside < len(tokens) and not run.behind_end and not self._matcher.is_accepting():
            raise GrammarError("The grammar may not end where the stream did.")
        run.behind_end += len(tokens) - inside
        if run.behind_end:
            self._forced = []

    def _consume(self, token: int) -> None:
        if not self._ask(lambda matcher: self._follow(matcher, (token,))):
            raise self._error(why_stopped(self._matcher, self._beginning))
        self._forced = _behind(self._forced, token)
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
        try:
            return self._ask(lambda matcher: self._would_follow(matcher, tokens))
        except GrammarError:  # there is no room for them; what stands is asked about again
            if self._followed is not None:
                self._give_up(self._followed)
            return False

    def _would_follow(self, matcher: LLMatcher, tokens: list[int]) -> bool:
        inside = self._until_end(tokens)
        followed = next((at for at in range(inside) if not self._try(matcher, tokens[at])), inside)
        fits = followed == inside and (inside == len(tokens) or matcher.is_accepting())
        if matcher.is_error():
            self._give_up(matcher)  # what is not put in leaves nothing behind
        else:
            self._go_back(followed)
        return fits

    def _try(self, matcher: LLMatcher, token: int) -> bool:
        """Follow it if it may come: where it may not there would be an error, which stays."""
        known = not self._follower.takes_long and matcher.validate_tokens([token])
        if not known and matcher.compute_logit_bias()[token] != ALLOWED:  # it also says what it lacks
            return False
        return self._follow(matcher, (token,))

    def _follow(self, matcher: LLMatcher, tokens: Iterable[int]) -> bool:
        """False where one cannot come: then the matcher has an error."""
        for token in tokens:
            if not self._follower.follow(matcher, token):
                return False
            self._worked()
        return True

    def back(self, count: int) -> None:
        """The last tokens of this run are void."""
        self._forced = []
        run = self._runs[-1]
        behind = min(count, run.behind_end)
        run.behind_end -= behind
        if count > behind:
            run.text_bytes -= self._length_of(run.inside[behind - count :].tolist())
            del run.inside[behind - count :]
            self._go_back(count - behind)

    @property
    def _goes_back(self) -> bool:
        """And not by following anew."""
        return self._source not in self._forward_alone

    def _go_back(self, count: int) -> None:
        """The library has kept the last mask, which may be of a way that is not gone on: it gives that again
        for a row as far on of another way, unless it has made one where the two part."""
        matcher = self._followed
        if not count or matcher is None:
            return
        if not matcher.rollback(count):
            self._followed = None
        else:
            self._mask(matcher)
            if matcher.is_error():
                self._give_up(matcher)

    def _give_up(self, matcher: LLMatcher) -> None:
        """It has stopped where the stream has not come: what stands is followed anew. Its lexer is that of
        its beginning and of all copies, and has stopped for all of them."""
        self._followed = None
        if not stopped_at_items(matcher):
            self._forget_lexers()

    def begin_anew(self) -> None:
        self._runs.append(_Run())
        self._followed, self._forced = None, []

    def drop_run(self) -> None:
        """It goes on where the run before stopped."""
        self._runs.pop()
        self._followed, self._forced = None, []

    def mask(self) -> bytes | None:
        """Which tokens may come next: where one must, that alone. None where nothing is asked."""
        if self._runs[-1].behind_end:
            return None
        if not self._forced:
            mask, forced = self._ask(lambda matcher: self._look(matcher, self._runs[-1].inside))
            self._check(self._matcher)
            self._forced = forced
            return mask
        return self._alone(self._forced[0])

    def _alone(self, token: int) -> bytes:
        return alone(token, self._vocabulary.tokenizer.vocab_size)

    def forced(self) -> list[int]:
        """The tokens that must come next, as the mask has found: a first, and what follows of itself."""
        return list(self._forced)

    def _look(self, matcher: LLMatcher, before: Several[int]) -> tuple[bytes, list[int]]:
        """Which may come next, and which must, behind these. Where that is the beginning of a longer way,
        the mask is of it alone: otherwise what comes would depend on whether it is waited for."""
        mask = self._mask(matcher)
        forced = [] if matcher.is_error() else self._tokens_ahead(matcher, mask, before)
        if forced:
            return alone(forced[0], len(mask)), forced
        only = allowed(mask, 2)
        return mask, only if len(only) == 1 else []

    def _tokens_ahead(self, matcher: LLMatcher, mask: bytes, before: Several[int]) -> list[int]:
        """That must come, and are not known by the mask alone. Where the library cannot go on along their
        way, those up to there."""
        text, followed = ForcedText(self._vocabulary), 0
        while self._goes_back and len(text) < MOST_FORCED and not matcher.is_error():
            token = text.go_on(mask)
            if token is None:
                break
            followed += 1
            if self._follow(matcher, (token,)):
                mask = self._mask(matcher)
        if matcher.is_error():
            self._give_up(matcher)
        else:
            self._go_back(followed)
        return text.tokens(before)

    def _mask(self, matcher: LLMatcher) -> bytes:
        self.masks_made += 1
        mask = matcher.compute_logit_bias()
        self._worked()
        return mask

    def expect(self, drafts: tuple[int, ...]) -> None:
        """These may come next: the masks behind each are asked for."""
        self._drafts = drafts

    def masks_ahead(self) -> list[bytes | None]:
        """The masks behind each draft, of which nothing stays behind. None behind one that cannot come, which
        nobody gets to, or that ends the run; and there are fewer where more memory would be taken, or more
        work in one step: only what came may have that, and until it has there are none any more. There are
        none where going back is following anew."""
        drafts, self._drafts = self._drafts, ()
        if not drafts or self._runs[-1].behind_end:
            return [None] * len(drafts)
        if not self._goes_back or not self._follows_drafts:
            return []
        try:
            return self._masks_behind(drafts)
        except GrammarError:  # there is no room for what it would keep
            self._follows_drafts = False
            return []

    def _masks_behind(self, drafts: tuple[int, ...]) -> list[bytes | None]:
        matcher, forced = self._matcher, self._forced
        masks: list[bytes | None] = []
        for draft in drafts[: self._until_end(drafts)]:
            if not self._try(matcher, draft):
                break
            forced = _behind(forced, draft)
            if forced:
                mask = self._alone(forced[0])
            else:
                mask, forced = self._look(matcher, (draft,))
            if matcher.is_error():
                break
            masks.append(mask)
        if matcher.is_error():
            self._give_up(matcher)
            self._follows_drafts = False
            return masks
        self._go_back(len(masks))
        return masks + [None] * (len(drafts) - len(masks))

    def _until_end(self, tokens: Several[int]) -> int:
        return next((at for at, token in enumerate(tokens) if token in self._ends), len(tokens))

    def _check(self, matcher: LLMatcher) -> None:
        if matcher.is_error():
            raise self._error(matcher)

    def _error(self, matcher: LLMatcher) -> GrammarError:
        return GrammarError(f"The grammar cannot be followed any further: {reason_of(matcher)}.")


def _kept(source: str, compiled: int, worked: int) -> int:
    """Bytes of what was compiled, whose lexer worked at so many expressions for that, and ever."""
    return SOURCE_BYTES * len(source) + COMPILED_BYTES * compiled + WORKED_BYTES * (worked - compiled)


def _behind(forced: list[int], token: int) -> list[int]:
    """What must still come, where this came."""
    return forced[1:] if forced[:1] == [token] else []
