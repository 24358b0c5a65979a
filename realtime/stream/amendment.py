"""An amendment: other arguments for a call, as tokens that stand in the place of some that do.

All up to the token in which the arguments begin to differ stays, and what stands behind that is written anew,
in the model's own spelling. What was made is read again before anything is done, so that a call never says
anything else than what was asked for. It knows one stream's output, and no engine.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from itertools import repeat
from operator import attrgetter
from typing import NamedTuple

from msgspec.structs import replace

from midstream import protocol
from realtime.refusal import Refusal
from realtime.stream.accumulated_output import Output
from realtime.stream.spanned_text import Call, SpannedText
from realtime.text.served_model import ServedModel
from realtime.tools.argument_text import continued, pieces_of, within_string
from realtime.tools.call_reader import CallReader
from realtime.tools.json_call import JsonCall
from realtime.tools.json_scanner import signs_in
from realtime.tools.parts import Arguments
from realtime.tools.same_json import same_json
from realtime.tools.span_reader import SpanReader
from realtime.tools.spelling import Spelling
from realtime.tools.token_text import TokenText

LONGEST, MOST_SIGNS = (
    16 << 10,
    2048,
)  # characters of arguments, and of those the ones in no string: some 10 ms
LONGEST_WRITTEN = 64 << 10  # of what is read again, from the token with which the call begins
MOST_SIGNS_WRITTEN = 16 << 10  # and of its arguments, as JSON, in no string: some 10 ms
LONGEST_BEGINNING = 4 << 10  # and of that before its name and its arguments are found, one by one: some 10 ms
READ_AT_ONCE = 256  # tokens


class Amendment(NamedTuple):
    """`behind`: of the tokens behind the prompt so many stay; None where nothing changes."""

    behind: int | None
    tokens: list[int]


class _Written(NamedTuple):
    """A call as it stands: its text, where in that its arguments begin, its tokens, and what reads it."""

    text: str
    begin: int
    tokens: _CallTokens
    reader: CallReader


def amendment(output: Output, call: Call, frame: protocol.Amend, model: ServedModel) -> Amendment:
    """It hangs on all that is known of the call, whatever of that was read: whoever adopts the stream does
    not know what was. Raises Refusal."""
    spans = output.spans
    assert spans is not None, "it has calls"
    asked = frame.arguments
    assert isinstance(asked, str), "it was checked"
    written = _written(output, spans, call)
    kinds = spans.kinds.get(call.name, {})
    told = "".join(call.arguments)
    if signs_in(told) > MOST_SIGNS_WRITTEN:
        raise _too_much(call, f"{MOST_SIGNS_WRITTEN} characters outside of strings")
    begun = written.text[written.begin :]
    try:
        pieces = pieces_of(model.tokenizer.spelling, kinds, asked, told, begun, partial=frame.partial)
    except (ValueError, IndexError, RecursionError):
        raise _no_json(frame) from None
    if isinstance(written.reader, JsonCall) and written.reader.quoted:
        pieces = within_string(pieces, partial=frame.partial)
    same, rest = continued(begun, pieces)
    stands = written.begin + same
    behind, length = written.tokens.last_end(stands)
    text = written.text[length:stands] + rest
    if not rest and (not frame.partial or stands == len(written.text)):
        return Amendment(None, [])
    tokens = model.tokenizer.encode_marked(text) if text else []
    if (highest := model.highest_beyond(tokens)) is not None:
        raise Refusal(
            "invalid_params",
            f"`arguments` have token {highest} of the tokenizer of this model, whose own tokens are 0 to "
            f"{model.vocab - 1}.",
        )
    _check_read_again(output, spans, call, behind, tokens, frame, asked)
    return Amendment(behind, tokens)


def checked(frame: protocol.Amend) -> protocol.Amend:
    """With its arguments as text. Raises Refusal where nothing could be made of them."""
    given = frame.arguments
    if isinstance(given, str) and len(given) > LONGEST:
        raise _too_long(given)
    try:
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError):
        raise _no_json(frame) from None
    if len(text) > LONGEST:
        raise _too_long(text)
    try:
        if not (frame.partial or isinstance(json.loads(text, parse_constant=_refuse), dict)):
            raise ValueError(text)
    except (ValueError, RecursionError):
        raise _no_json(frame) from None
    signs = signs_in(text)
    if signs > MOST_SIGNS:
        raise Refusal(
            "invalid_params",
            f"`arguments` have {signs} characters outside of strings; an amend may have {MOST_SIGNS}: "
            "rewind, and inject them.",
        )
    return replace(frame, arguments=text)


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _too_long(text: str) -> Refusal:
    return Refusal(
        "invalid_params",
        f"`arguments` are {len(text)} characters; an amend may have {LONGEST}: rewind, and inject them.",
    )


def _too_much(call: Call, most: str) -> Refusal:
    return Refusal(
        "invalid_params",
        f'Call "{call.call_id}", with what was injected before it, has more than {most}: rewind, and inject '
        "it anew.",
    )


def _no_json(frame: protocol.Amend) -> Refusal:
    what = "the beginning of a JSON object" if frame.partial else "a JSON object, or the text of one"
    return Refusal("invalid_params", f"`arguments` of an amend are {what}.")


def _written(output: Output, spans: SpannedText, call: Call) -> _Written:
    """Read again from its beginning, character by character until its arguments have begun."""
    reader, injections, behind = spans.before_call(output.tokens, call)
    search = _Search(reader, spans.calls.index(call))
    until = len(output) if call.end is None else call.end
    tokens = _CallTokens(spans.spelling, list(output.known_from(call.index, injections, until)), behind)
    while tokens.left:
        search.read(tokens.read(READ_AT_ONCE))
        if search.given_up or tokens.length > LONGEST_WRITTEN:
            raise _too_much(
                call,
                f"{LONGEST_BEGINNING} characters until its name is known and its arguments begin"
                if search.given_up
                else f"{LONGEST_WRITTEN} characters",
            )
    if search.begin is None or search.call is None:
        raise Refusal("invalid_params", f'The arguments of call "{call.call_id}" have not begun.')
    return _Written(tokens.text, search.begin, tokens, search.call)


class _CallTokens:
    """A call's tokens, read a run at a time: where each of them ends is looked at in one run alone, for there
    may be one for each character. `behind`: tokens behind the prompt that stand before."""

    def __init__(self, spelling: Spelling, tokens: list[int], behind: int) -> None:
        self._marks = spelling.delimiters.by_token
        self._pieces = spelling.pieces
        self._tokens = tokens
        self._behind = behind
        self._at = self.length = 0  # tokens and characters that were read
        self._characters = TokenText(0)
        self._runs: list[_Run] = []

    @property
    def left(self) -> bool:
        return self._at < len(self._tokens)

    @property
    def text(self) -> str:
        return "".join(run.text for run in self._runs)

    def read(self, count: int) -> str:
        """So many more of them."""
        characters, tokens = self._characters.copy(), self._tokens[self._at : self._at + count]
        text = self._said(tokens, self._characters)
        self._runs.append(_Run(self._at, self.length, characters, tokens, text))
        self._at += len(tokens)
        self.length += len(text)
        return text

    def _said(self, tokens: list[int], characters: TokenText) -> str:
        said, begun = "", 0
        for at in [at for at, token in enumerate(tokens) if token in self._marks]:
            said += characters.add(self._bytes_of(tokens[begun:at]))
            said += characters.add(b"", ends=True) + self._marks[tokens[at]]
            begun = at + 1
        return said + characters.add(self._bytes_of(tokens[begun:]))

    def _bytes_of(self, tokens: list[int]) -> bytes:
        return b"".join(map(self._pieces.get, tokens, repeat(b"")))

    def last_end(self, most: int) -> tuple[int, int]:
        """Of the last token that ends with a character, among the first so many: as tokens behind the prompt,
        and characters."""
        for run in reversed(self._runs[: bisect_right(self._runs, most, key=attrgetter("length"))]):
            found, length, characters = None, run.length, run.characters.copy()
            for at, token in enumerate(run.tokens, self._behind + run.at):
                if not characters.within_character:
                    found = at, length
                length += len(self._said([token], characters))
                if length > most:
                    break
            else:
                if not characters.within_character:
                    found = at + 1, length
            if found is not None:
                return found
        return self._behind, 0


class _Run(NamedTuple):
    """`at` and `length`: tokens and characters before it; `characters`: what had begun of one."""

    at: int
    length: int
    characters: TokenText
    tokens: list[int]
    text: str


class _Search:
    """For where a call's arguments begin, in a text that it is shown character by character: `begin`. So many
    calls stand `before` it, of which what reads one may be reading still, and others may have been injected
    at the same token: they are in the text."""

    def __init__(self, reader: SpanReader, before: int) -> None:
        self._reader = reader
        self._last_before, self._before = reader.call, before
        self._at = 0
        self.call: CallReader | None = None
        self.begin: int | None = None

    @property
    def settled(self) -> bool:
        return self.begin is not None and self._reader.lengths.calls > self._before

    @property
    def given_up(self) -> bool:
        return self._at > LONGEST_BEGINNING

    def read(self, text: str) -> None:
        """Character by character, until it is found."""
        for char in text:
            if self.settled or self.given_up:
                return
            self._read(char)

    def _read(self, char: str) -> None:
        last = self._reader.call
        self._reader.feed_text(char, 0)
        self._at += 1
        candidate = self._reader.call or last  # its last character may have been that
        if candidate is None or candidate is self._last_before:
            return
        if candidate is not self.call:
            self.call, self.begin = candidate, None
        read = candidate.in_arguments
        if self.begin is None and read is not None:
            self.begin = self._at - read


def _check_read_again(
    output: Output,
    spans: SpannedText,
    call: Call,
    behind: int,
    tokens: list[int],
    frame: protocol.Amend,
    asked: str,
) -> None:
    reader = spans.reader_at(output.tokens, *output.place(behind))
    begun = reader.lengths.calls > spans.calls.index(call)
    told = "".join(call.arguments)[: reader.lengths.arguments] if begun else ""
    parts = reader.inject(tokens, call.index)
    told += "".join(part.text for part in parts if isinstance(part, Arguments))
    is_open = reader.call is not None and reader.lengths.open
    if not (is_open if frame.partial else same_json(told, asked)):
        raise Refusal(
            "invalid_params",
            "This model's way of writing calls cannot say these `arguments`: nothing was changed.",
        )
