"""A follower: has matchers follow tokens, and keeps the interpreter no longer than that is quick.

The library keeps it while one matcher follows a token: where rules are ambiguous for a tenth of a second, for
nobody else's good. Told of two matchers it lets go of it, and has a thread of its own follow: that takes 40
microseconds longer, and is for tokens behind one that took long. It knows no grammar and no stream.
"""

from __future__ import annotations

import os
import threading
import time

from llguidance import LLExecutor, LLMatcher

from engine.structure.compiler import failed_matcher
from engine.structure.worker import STACK_BYTES, give_way

LONG_S = 0.002  # for one token

os.environ.setdefault("RUST_MIN_STACK", str(STACK_BYTES))  # of the library's threads, as of ours


class GivenUp(Exception):
    """Nobody asks any more."""


class Follower:
    """Of one stream's matchers."""

    def __init__(self) -> None:
        self.takes_long = False  # as the last token did
        self.asks_first = False  # which tokens may come: only then the library has as much work to do again
        self._given_up = False

    def give_up(self) -> None:
        """From any thread: no more than the token under way is followed."""
        self._given_up = True

    def check(self) -> None:
        """Before what takes long. Raises GivenUp."""
        if self._given_up:
            raise GivenUp

    def follow(self, matcher: LLMatcher, token: int) -> bool:
        """False where it cannot come: then the matcher has an error. Raises GivenUp."""
        give_way()  # of a text that is put in, or followed anew, there may be thousands of tokens
        self.check()
        if self.asks_first:
            matcher.compute_logit_bias()
        if self.takes_long:
            began_s = time.perf_counter()
            followed = _library.follow(matcher, token)
            took_s = time.perf_counter() - began_s
        else:
            began_s = time.thread_time()  # whoever else has the processor meanwhile
            followed = matcher.consume_token(token)
            took_s = time.thread_time() - began_s
        self.takes_long = took_s > LONG_S
        return followed


class _Library(threading.local):
    """Its thread for each of ours: what is quick does not wait there for what is not."""

    def __init__(self) -> None:
        self._executor = LLExecutor(1)
        self._beside = failed_matcher()  # which follows nothing, and so at once

    def follow(self, matcher: LLMatcher, token: int) -> bool:
        followed, _ = self._executor.consume_token_par([(matcher, token), (self._beside, token)])
        return followed


_library = _Library()
