"""The compiler of grammars, with limits: what one stranger's grammar may cost, in work and not in time.

A grammar is a text of llguidance's: Lark, or JSON that holds a JSON schema. The limits bound what compiling
it and each step along it can take, but for what is made in one go; they do not bound its recursion, so all of
it is done on a deep stack (`worker.py`). The gateway has `problem_of` asked in a process of its own
(`checker.py`) before a grammar goes to an engine; both go by the same limits.
It knows no token but bytes, and no stream.
"""

from __future__ import annotations

import functools
import json
import re

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from engine.structure.mask import ALLOWED
from engine.structure.matcher_memory import MOST_STATES, MOST_WIDTH

# Of a lexer's work in one step, in expressions: some 2 ms of it, and 30. A mask takes the most, and others
# have the interpreter meanwhile.
FIRST_FUEL, MOST_FUEL = 50_000, 800_000
LONGEST_REASON = 300  # characters of what is told of a grammar that is none
END = 256  # behind the bytes
_STATE = "\n<state>\n"  # what the library tells behind an error
_WORK = re.compile(r'"lexer_cost": (\d+)')
NO_FORCING = '\n%llguidance {"no_forcing": true}'


def limits(lexer_states: int, width: int, fuel: int) -> LLParserLimits:
    return LLParserLimits(
        max_grammar_size=100_000,  # symbols
        initial_lexer_fuel=500_000,  # some 10 ms
        step_lexer_fuel=fuel,
        step_max_items=10_000,
        max_items_in_row=width,
        max_lexer_states=lexer_states,
        # It makes states that nobody limits, 50 KB of a terminal with `\w`, and masks are no quicker for it.
        precompute_large_lexemes=False,
        verbose_errors=True,  # or nothing tells what a lexer has done
    )


def matcher_of(
    source: str,
    tokenizer: LLTokenizer,
    lexer_states: int = MOST_STATES,
    width: int = MOST_WIDTH,
    fuel: int = MOST_FUEL,
) -> LLMatcher:
    """At the grammar's beginning. What is wrong is in its `get_error()`. `width`: items in a row of its
    parser."""
    limited = limits(lexer_states, width, fuel)
    return LLMatcher(tokenizer, _without_forcing(source), log_level=0, limits=limited)


def _without_forcing(source: str) -> str:
    """The same grammar, of which the library follows nothing before it has come: what must come next may be
    much, and without end, and nothing limits that (`forced_text.py`)."""
    try:
        first, *others = json.loads(source)["grammars"]
    except (LookupError, RecursionError, TypeError, ValueError):
        return source + NO_FORCING  # a text of Lark's, if it is any grammar
    if "lark_grammar" in first:
        first["lark_grammar"] += NO_FORCING  # the last of several counts
        return json.dumps({"grammars": [first, *others]})
    whole = {"lark_grammar": f"start: @whole{NO_FORCING}"}
    return json.dumps({"grammars": [whole, {**first, "name": "whole"}]})


def failed_matcher() -> LLMatcher:
    """One that can follow nothing."""
    return matcher_of("", _bytes())


def needs_more_states(matcher: LLMatcher) -> bool:
    """Whether it cannot go on for want of them."""
    return "too many states" in _error_of(matcher)


def needs_wider_rows(matcher: LLMatcher) -> bool:
    return " items; max is " in _error_of(matcher)


def needs_more_fuel(matcher: LLMatcher) -> bool:
    return "too many expressions" in _error_of(matcher)


def _error_of(matcher: LLMatcher) -> str:
    """Without what it quotes behind that: its text and its grammar."""
    return matcher.get_error().partition(_STATE)[0]


def work_of(beginning: LLMatcher) -> int:
    """What the lexer of this one and of all its copies has done so far, in expressions. That is told with
    errors alone: of a copy that is to go back, where nothing has come."""
    asked = beginning.deep_copy()
    asked.compute_logit_bias()  # else it knows less
    asked.rollback(1)
    told = _WORK.search(asked.get_error().partition(_STATE)[2])
    assert told is not None
    return int(told[1])


def why_stopped(matcher: LLMatcher, beginning: LLMatcher | None) -> LLMatcher:
    """One that says why it cannot go on. Of a token in whose midst its lexer lacked something it says that it
    may not come; but its lexer is that of the beginning that it was copied from, and lacks that there."""
    if beginning is None or "doesn't satisfy the grammar" not in _error_of(matcher):
        return matcher
    asked = beginning.deep_copy()
    asked.compute_logit_bias()
    return asked if asked.is_error() else matcher


def stopped_at_items(matcher: LLMatcher) -> bool:
    """Of its parser, and not of its lexer."""
    return " items" in _error_of(matcher)


def problem_of(source: str) -> str:
    """Why a grammar cannot be followed, or nothing: it is compiled, over bytes, and its first step taken."""
    matcher = matcher_of(source, _bytes())
    if not matcher.is_error():
        first = matcher.compute_logit_bias().find(ALLOWED)
        if first >= 0:  # only then it says how wide a row would be
            matcher.consume_token(first)
    return reason_of(matcher) if matcher.is_error() else ""


def gone_back(fresh: LLMatcher) -> LLMatcher:
    """A copy that followed one token, and went back: what it lacks for that the other does as well."""
    tried = fresh.deep_copy()
    tried.consume_token(tried.compute_logit_bias().find(ALLOWED))
    tried.rollback(1)
    return tried


def goes_back(tried: LLMatcher) -> bool:
    """Whether it could: grammars that count tokens, or stop at a text, the library follows forward alone."""
    return "rollback not supported" not in _error_of(tried)


def reason_of(matcher: LLMatcher) -> str:
    """What a matcher says that cannot go on, in the line that names what is wrong."""
    lines = _error_of(matcher).strip().split("\n")
    reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    if reason.startswith("NoExtension"):
        return "it leaves nothing that could come next"
    return reason if len(reason) <= LONGEST_REASON else reason[:LONGEST_REASON] + "…"


@functools.cache
def _bytes() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_ByteTokens()), slices=[])


class _ByteTokens:
    """A tokenizer of bytes alone, as llguidance wants to be shown one."""

    tokens = (*(bytes([byte]) for byte in range(END)), b"end")  # of a name that no grammar can write
    special_token_ids = (END,)
    eos_token_id = END
    bos_token_id = None

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)
