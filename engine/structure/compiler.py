"""The compiler of grammars, with limits: what one stranger's grammar may cost, in work and not in time.

A grammar is a text of llguidance's: Lark, or JSON that holds a JSON schema. The limits bound what compiling
it and each step along it can take, but for what is made in one go; they do not bound its recursion, so all of
it is done on a deep stack (`worker.py`). The gateway has `problem_of` asked in a process of its own
(`checker.py`) before a grammar goes to an engine; both go by the same limits.
It knows no token but bytes, and no stream.
"""

from __future__ import annotations

import functools

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from engine.foresight.source import is_foreseen, without_forcing
from engine.structure.matcher_memory import MOST_STATES, MOST_WIDTH

# Of a lexer's work in one step, in expressions: some 2 ms of it, and 30. A mask takes the most, and others
# have the interpreter meanwhile.
FIRST_FUEL, MOST_FUEL = 50_000, 800_000
LONGEST_REASON = 300  # characters of what is told of a grammar that is none
END = 256  # behind the bytes


def limits(lexer_states: int, width: int, fuel: int) -> LLParserLimits:
    return LLParserLimits(
        max_grammar_size=100_000,  # symbols
        initial_lexer_fuel=500_000,  # some 10 ms
        step_lexer_fuel=fuel,
        step_max_items=10_000,
        max_items_in_row=width,
        max_lexer_states=lexer_states,
        verbose_errors=False,  # they would quote the text
    )


def matcher_of(
    source: str,
    tokenizer: LLTokenizer,
    lexer_states: int = MOST_STATES,
    width: int = MOST_WIDTH,
    fuel: int = MOST_FUEL,
) -> LLMatcher:
    """At the grammar's beginning. What is wrong is in its `get_error()`. `width`: items in a row of its
    parser. What must come next it follows with each mask, all at once, where that is known to be little."""
    asked = source if is_foreseen(source) else without_forcing(source)
    return LLMatcher(tokenizer, asked, log_level=0, limits=limits(lexer_states, width, fuel))


def failed_matcher() -> LLMatcher:
    """One that can follow nothing."""
    return matcher_of("", _bytes())


def needs_more_states(matcher: LLMatcher) -> bool:
    """Whether it cannot go on for want of them."""
    return matcher.is_error() and "too many states" in matcher.get_error()


def needs_wider_rows(matcher: LLMatcher) -> bool:
    return matcher.is_error() and " items; max is " in matcher.get_error()


def needs_more_fuel(matcher: LLMatcher) -> bool:
    return matcher.is_error() and "too many expressions" in matcher.get_error()


def problem_of(source: str) -> str:
    """Why a grammar cannot be followed, or nothing: it is compiled, over bytes, and its first step taken."""
    matcher = matcher_of(source, _bytes())
    if not matcher.is_error():
        allowed = matcher.compute_logit_bias()
        first = len(allowed) - len(allowed.lstrip(b"\0"))
        if first < len(allowed):  # only then it says how wide a row would be
            matcher.consume_token(first)
    return reason_of(matcher) if matcher.is_error() else ""


def ahead(matcher: LLMatcher) -> int:
    """Bytes that must come next, which it has followed already, with a mask: for what is foreseen alone."""
    return 0 if matcher.is_error() else len(matcher.compute_ff_bytes())


def reason_of(matcher: LLMatcher) -> str:
    """What a matcher says that cannot go on, in the line that names what is wrong."""
    lines = matcher.get_error().partition("<non-verbose/>")[0].strip().split("\n")
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
