"""The reading of what a model writes, token by token: content, reasoning and calls, each as soon as it is
known.

It is told tokens and never pieces of text, and what it says of a token follows from the tokens so far alone.
What may become a delimiter is held back until it is known; what turns out to be no call is content. A call
ends where its own spelling says, and a close tag within a string is text.

All of its state is in a few small values: a copy is a point to go back to.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from itertools import repeat

from realtime.tools.call_reader import LONGEST_UNTOLD, CallReader, Step
from realtime.tools.json_scanner import BLANKS, SPACE, end_of
from realtime.tools.marks import Marks
from realtime.tools.parts import (
    Arguments,
    CallBegun,
    CallEnded,
    Content,
    Lengths,
    Part,
    Parts,
    Reasoning,
)
from realtime.tools.pythonic_call import is_of_name
from realtime.tools.reasoning_count import ReasoningCount
from realtime.tools.spelling import Mark, Spelling
from realtime.tools.token_text import TokenText

Offered = Mapping[str, Collection[str]]  # of each tool the arguments that are no text


class SpanReader:
    """`offered`: the tools; None where there are none, and what is spelt like a call is content. `prompt` is
    what the model goes on from."""

    def __init__(self, spelling: Spelling, offered: Offered | None, prompt: Sequence[int]) -> None:
        self._spelling = spelling
        self._offered = offered
        self._marks = Marks(spelling, with_tools=offered is not None)
        self._text = TokenText(spelling.leading_spaces)
        self._parts = Parts()
        self._next_index = 0
        self._reasoned_before = 0  # tokens, in earlier turns
        self._begin(prompt)

    def _begin(self, prompt: Sequence[int]) -> None:
        self._mode = "gap"
        self._fresh = True  # whether nothing was said yet
        self._may_be_bare = self._spelling.tools.bare if self._offered is not None else ""
        self._reasoned = ReasoningCount()
        self._held = ""  # that may become a delimiter
        self._origins: tuple[int, ...] = ()  # of what is held: token indices, inverted where it was injected
        self._blanks = ""  # that are said if something follows
        self._section: int | None = None  # where a section of calls has begun
        self._call: CallReader | None = None
        self._call_index = 0
        self._told = False  # whether the call's beginning was
        self._raw = ""  # all of the call until then
        self._in_list = self._comma = False
        self._is_bare = False  # whether the call has no delimiter, and may be content
        if self._spelling.reasons_behind(prompt):
            self._mode, self._reasoned = "reasoning", self._reasoned.opened()
        elif self._spelling.heads_behind(prompt):
            self._open_call("", self._next_index)

    @property
    def lengths(self) -> Lengths:
        """How much was said."""
        return self._parts.lengths

    @property
    def reasoning_tokens(self) -> int:
        """Of the output."""
        return self._reasoned_before + self._reasoned.tokens

    def reasoning_room(self, limit: int) -> int:
        """How many tokens may come before its reasoning, if it reasons then, has as many as it may. It is not
        closed in the middle of a character."""
        room = self._reasoned.room(limit)
        return max(room, 1) if self._text.within_character else room

    @property
    def held(self) -> int:
        """Characters that it keeps of what is not said yet, and with it each copy of it."""
        of_call = () if self._call is None else vars(self._call).values()
        texts = (self._raw, self._held, self._blanks, *of_call)
        return sum(len(text) for text in texts if isinstance(text, str))

    @property
    def call(self) -> CallReader | None:
        """What reads the call that is open."""
        return self._call

    def copy(self) -> SpanReader:
        again = copy.copy(self)
        again._parts = Parts(self.lengths)
        again._text = self._text.copy()
        again._call = None if self._call is None else self._call.copy()
        return again

    # -- in --------------------------------------------------------------------------------------

    def feed(self, token: int, index: int) -> list[Part]:
        """What is known with this output token."""
        self._next_index = index + 1
        self._reasoned = self._reasoned.token()
        mark = self._spelling.delimiters.by_token.get(token)
        if mark is None:
            self._read_text(self._text.add(self._spelling.pieces.get(token, b"")), index)
        else:  # what is left of a character before it never becomes one
            self._read_text(self._text.add(b"", ends=True) + mark, index)
        return self._parts.take()

    def feed_text(self, text: str, index: int) -> list[Part]:
        """As `feed`, of what is a token's text already, with marks in it."""
        self._read_text(text, index)
        return self._parts.take()

    def inject(self, tokens: Sequence[int], index: int) -> list[Part]:
        """Context before output token `index`, in the model's own turn: it is part of calls alone."""
        marks, begun = self._spelling.delimiters.by_token, 0
        for at in [at for at, token in enumerate(tokens) if token in marks]:
            run = self._text.add(self._bytes_of(tokens[begun:at]))
            self._read_text(run + self._text.add(b"", ends=True) + marks[tokens[at]], ~index)
            begun = at + 1
        self._read_text(self._text.add(self._bytes_of(tokens[begun:])), ~index)
        return self._parts.take()

    def _bytes_of(self, tokens: Sequence[int]) -> bytes:
        """Of thousands at once: a call that is amended is read again while everybody waits."""
        return b"".join(map(self._spelling.pieces.get, tokens, repeat(b"")))

    def begin_turn(self, prompt: Sequence[int], index: int) -> list[Part]:
        """The model's turn was closed, and another opened: a call that was open stays so."""
        self._next_index = index
        parts = self.flush()
        self._reasoned_before += self._reasoned.tokens
        self._begin(prompt)
        return parts

    def flush(self) -> list[Part]:
        """The output ends: what was held for want of a continuation. A call that is not whole is none."""
        index = self._next_index
        self._read_text(self._text.add(b"", ends=True), index)
        held = zip(self._held, self._origins, strict=True)
        behind_span = self._mode == "gap" and not self._fresh
        self._held, self._origins = "", ()
        for char, origin in () if behind_span else held:
            self._plain(char, origin)
        if self._mode in ("block", "call") and self._is_bare and not self._told:
            self._parts.add(Content(self._raw))
        elif self._mode == "gap" and self._fresh:
            self._parts.add(Content(self._blanks))
        self._raw = self._blanks = ""
        return self._parts.take()

    def _read_text(self, text: str, origin: int) -> None:
        at = 0
        while at < len(text):
            at = self._read_run(text, at, origin)
            if at < len(text):
                self._step(text[at], origin)
                at += 1
        if self._told and self._call is not None:
            self._tell_arguments(self._call)

    def _read_run(self, text: str, at: int, origin: int) -> int:
        """What no delimiter can begin in, all at once: the same as character by character. Returns how far it
        is."""
        if self._mode == "call" and self._told and self._call is not None:
            return self._call.take_plain(text, at)
        if self._mode == "gap" and not self._held:
            return self._take_blanks(text, at, origin)
        if self._held or self._mode not in ("content", "reasoning") or self._fresh:
            return at
        until = self._marks.plain_until(self._mode, text, at, len(text))
        shown = self._spelling.delimiters.shown(text[at:until])
        if self._mode == "content":
            self._say_from(origin, Content(shown))
        elif body := shown.rstrip(SPACE):
            self._say_from(origin, Reasoning(self._blanks + body))
            self._blanks = ""
            self._hold_blanks(shown[len(body) :], origin)
        else:
            self._hold_blanks(shown, origin)
        return until

    def _take_blanks(self, text: str, at: int, origin: int) -> int:
        until = self._marks.plain_until("gap", text, at, end_of(BLANKS, text, at, len(text)))
        self._hold_blanks(text[at:until], origin)
        return until

    def _hold_blanks(self, blanks: str, origin: int) -> None:
        """They are said if something follows, but at reasoning's beginning and between spans; that is not
        waited for without end."""
        said = self._fresh if self._mode == "gap" else not self._fresh
        if origin < 0 or not said:
            return
        self._blanks += blanks
        if len(self._blanks) > LONGEST_UNTOLD:
            held, self._blanks = self._blanks, ""
            if self._mode == "gap":
                self._enter("content")
            self._parts.add(Content(held) if self._mode == "content" else Reasoning(held))

    def _step(self, char: str, origin: int) -> None:
        match self._mode:
            case "call":
                self._read_call(char, origin)
            case "block":
                self._read_block(char, origin)
            case _:
                self._read_between(char, origin)

    # -- between calls ---------------------------------------------------------------------------

    def _read_between(self, char: str, origin: int) -> None:
        self._held += char
        self._origins += (origin,)
        while self._held:
            mark = self._marks.find(self._mode, self._held)
            if mark is not None:
                self._found(mark)
                return
            if self._marks.may_become(self._held):
                return
            first, self._held = self._held[0], self._held[1:]
            begun, self._origins = self._origins[0], self._origins[1:]
            self._plain(first, begun)
            if self._mode in ("call", "block"):
                rest = zip(self._held, self._origins, strict=True)
                self._held, self._origins = "", ()
                for later, at in rest:
                    self._step(later, at)

    def _found(self, mark: Mark) -> None:
        """A delimiter, which is what was held."""
        opened_by, begun = self._held, self._origins[0]
        self._held, self._origins = "", ()
        in_section = self._section if self._mode == "gap" else None
        index = begun if begun >= 0 else ~begun
        match mark:
            case Mark.REASONING:
                self._enter("reasoning")
                self._fresh = True
            case Mark.CALL:
                self._open_call(opened_by, index if in_section is None else in_section)
            case Mark.SECTION:
                self._enter("gap")
                self._section = index
            case Mark.FILL:
                self._enter("gap")
                self._section = in_section

    def _enter(self, mode: str) -> None:
        if mode in ("content", "block"):
            self._may_be_bare = ""
        self._reasoned = self._reasoned.opened() if mode == "reasoning" else self._reasoned.closed()
        self._mode, self._blanks, self._section = mode, "", None
        self._fresh = self._in_list = self._comma = False
        self._is_bare = self._is_bare and mode == "call"

    def _plain(self, char: str, origin: int) -> None:
        """A character that is no part of a delimiter."""
        shown = self._spelling.delimiters.shown(char)
        if not shown:
            return
        if self._mode == "content":
            self._say_from(origin, Content(shown))
        elif char in SPACE:
            self._hold_blanks(char, origin)
        elif self._mode == "reasoning":
            self._say_from(origin, Reasoning(("" if self._fresh else self._blanks) + shown))
            self._blanks, self._fresh = "", False
        else:
            self._end_gap(char, shown, origin)

    def _end_gap(self, char: str, shown: str, origin: int) -> None:
        if self._in_list and self._goes_on(char, origin):
            return
        if char == self._may_be_bare:
            blanks = self._blanks if self._fresh else ""
            self._open_call("", origin if origin >= 0 else ~origin)
            self._raw, self._is_bare = blanks, True
            self._step(char, origin)
            return
        blanks = self._blanks if self._fresh else ""
        self._enter("content")
        self._say_from(origin, Content(blanks + shown))

    def _goes_on(self, char: str, origin: int) -> bool:
        """Whether a list of calls goes on with this."""
        pythonic = self._spelling.tools.body == "pythonic"
        if char in ",;" or char == "]":
            self._comma = char != "]"
            return True
        if (char == "{") if not pythonic else (self._comma and is_of_name(char)):
            self._begin_call("", origin if origin >= 0 else ~origin)
            self._step(char, origin)
            return True
        return False

    # -- calls -----------------------------------------------------------------------------------

    def _open_call(self, opened_by: str, index: int) -> None:
        self._enter("block")
        self._raw, self._call_index, self._told = opened_by, index, False
        if self._spelling.tools.body not in ("json", "pythonic"):
            self._begin_call(opened_by, index)

    def _begin_call(self, opened_by: str, index: int) -> None:
        raw = self._raw if self._mode == "block" else ""
        self._enter("call")
        self._raw, self._call_index, self._told = raw, index, False
        self._call = self._spelling.call_reader(opened_by, self._offered or {})

    def _read_block(self, char: str, origin: int) -> None:
        """Between a delimiter and the first of the calls that it opens."""
        pythonic = self._spelling.tools.body == "pythonic"
        listed = self._comma
        if char in SPACE or (char == "[" and not listed):
            self._comma = listed or char == "["
            self._hold(char, origin)
        elif (listed and is_of_name(char)) if pythonic else char == "{":
            self._begin_call("", self._call_index)
            self._read_call(char, origin)
        else:
            self._give_back(char, origin)

    def _give_back(self, char: str, origin: int) -> None:
        """It was no call: all of it is content."""
        raw = self._spelling.delimiters.shown(self._raw)
        self._enter("content")
        self._raw, self._call = "", None
        self._parts.add(Content(raw))
        self._step(char, origin)

    def _read_call(self, char: str, origin: int) -> None:
        call = self._call
        assert call is not None
        step = call.step(char)
        if step in (Step.MORE, Step.WHOLE) and call.name is not None and not self._told:
            step = self._tell_call(call.name, step)
        if self._told and step is not Step.MORE:
            self._tell_arguments(call)
        match step:
            case Step.MORE if not self._told:
                self._hold(char, origin)
            case Step.MORE:
                pass
            case Step.WHOLE:
                self._parts.add(CallEnded(self._next_index if origin >= 0 else ~origin))
                self._enter("gap")
                self._in_list = self._spelling.tools.body in ("json", "pythonic")
                self._call = None
            case Step.BROKEN if self._told:
                self._enter("gap")
                self._call = None
                self._step(char, origin)
            case Step.BROKEN:
                self._give_back(char, origin)
            case _:
                self._enter("reasoning" if step is Step.REASONING else "content")
                self._fresh = step is Step.REASONING
                self._call = None

    def _hold(self, char: str, origin: int) -> None:
        """Of what is a call if its name follows: that is not waited for without end."""
        if len(self._raw) >= LONGEST_UNTOLD:
            self._give_back(char, origin)
        elif origin >= 0:
            self._raw += char

    def _tell_arguments(self, call: CallReader) -> None:
        self._parts.add(Arguments(self._spelling.delimiters.spelt(call.told)))
        call.told = ""

    def _tell_call(self, name: str, step: Step) -> Step:
        if self._offered is None:
            return Step.CONTENT
        if self._is_bare and name not in self._offered:
            return Step.BROKEN
        self._told, self._raw = True, ""
        self._parts.add(CallBegun(self._call_index, name))
        return step

    # -- out -------------------------------------------------------------------------------------

    def _say_from(self, origin: int, part: Part) -> None:
        """What was injected is no output."""
        if origin >= 0:
            self._parts.add(part)
