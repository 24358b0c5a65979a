"""A matcher: one grammar, followed along one stream's tokens; what it forces, and what it allows, next.

A stream may begin its grammar anew, so there are *runs* along it, each from its own beginning; only the last
advances, and whoever goes back behind its beginning is in the one before. An end token, where the grammar may
end, ends the run: nothing is asked of what follows it.

It works where it is called, and may take long; `constraint.py` has it work in a thread.
"""

from __future__ import annotations

from llguidance import LLMatcher

from engine.structure.compiler import matcher_of, reason_of
from engine.structure.vocabulary import Vocabulary

ALLOWED = 200  # a mask's byte of a token that may come


class GrammarError(Exception):
    """A grammar that cannot be gone on with: a sentence for whoever sent it."""


class _Run:
    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher
        self.behind_end = 0  # tokens from the end token on


class Matcher:
    def __init__(self, source: str, vocabulary: Vocabulary, later: str | None = None) -> None:
        """`later`: the source of the runs behind the first, if that is another."""
        self._vocabulary = vocabulary
        self._ends = vocabulary.ends
        self._later = later or source
        self._fresh: dict[str, LLMatcher] = {}
        self._runs = [self._begun(source)]

    def accept(self, tokens: list[int]) -> None:
        run = self._runs[-1]
        inside = 0 if run.behind_end else self._until_end(tokens)
        if inside and not run.matcher.consume_tokens(tokens[:inside]):
            raise self._error(run.matcher)
        if inside < len(tokens) and not run.behind_end and not run.matcher.is_accepting():
            raise GrammarError("The grammar may not end where the stream did.")
        run.behind_end += len(tokens) - inside

    def fits(self, tokens: list[int]) -> bool:
        """Whether they may come next, one after the other."""
        run = self._runs[-1]
        if run.behind_end:
            return True
        asked = tokens[: self._until_end(tokens) + 1]
        return bool(run.matcher.validate_tokens(asked) == len(asked))

    def back(self, count: int) -> None:
        """The last tokens of this run are void."""
        run = self._runs[-1]
        behind = min(count, run.behind_end)
        run.behind_end -= behind
        if count > behind and not run.matcher.rollback(count - behind):
            raise self._error(run.matcher)

    def begin_anew(self) -> None:
        self._runs.append(self._begun(self._later))

    def _begun(self, source: str) -> _Run:
        if source not in self._fresh:
            self._fresh[source] = matcher_of(source, self._vocabulary.tokenizer)
            self._check(self._fresh[source])
        return _Run(self._fresh[source].deep_copy())

    def drop_run(self) -> None:
        """It goes on where the run before stopped."""
        self._runs.pop()

    def mask(self) -> bytes | None:
        """A byte for each token: whether it may come next. None where nothing is asked."""
        run = self._runs[-1]
        if run.behind_end:
            return None
        mask = run.matcher.compute_logit_bias()
        self._check(run.matcher)
        return mask

    def forced(self, mask: bytes | None) -> list[int]:
        """The tokens that must come next, where the mask leaves one: that, and what follows of itself.

        To ask for those keeps the interpreter for as long as it takes: nobody asks where there is a choice.
        """
        if mask is None or mask.count(ALLOWED) != 1:
            return []
        matcher = self._runs[-1].matcher
        tokens = matcher.compute_ff_tokens()
        self._check(matcher)
        return tokens or [mask.index(ALLOWED)]

    def _until_end(self, tokens: list[int]) -> int:
        return next((at for at, token in enumerate(tokens) if token in self._ends), len(tokens))

    def _check(self, matcher: LLMatcher) -> None:
        if matcher.is_error():
            raise self._error(matcher)

    def _error(self, matcher: LLMatcher) -> GrammarError:
        return GrammarError(f"The grammar cannot be followed any further: {reason_of(matcher)}.")
