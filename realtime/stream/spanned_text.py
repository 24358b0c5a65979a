"""The text of a stream whose output has spans: content, and beside it reasoning and calls.

It stands where a `TextStream` stands otherwise, of which it uses one for the content: stop strings are looked
for there alone. To go back it keeps a copy of its reader now and then, and reads on from one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from hashlib import blake2b
from itertools import accumulate, chain
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from midstream.protocol import Beside, Reasoning, SnapshotCall, ToolArguments, ToolCall, ToolCallDone
from realtime.guards.reading import Text
from realtime.stream.memory import CHARACTER_BYTES
from realtime.stream.weights import text_bytes
from realtime.text.detokenizer import TextStream
from realtime.text.tokenizer import Tokenizer
from realtime.tools import parts as spans
from realtime.tools.offered import Kinds, no_texts
from realtime.tools.parts import Lengths, Part
from realtime.tools.span_reader import SpanReader

COPY_EVERY = 256  # bytes of tokens, injected ones too: a rewind reads hardly more than these anew
COPY_SHARE = 8  # or where much is held, and copied as well, one for so many characters of it
READ_AT_ONCE = 4096  # bytes of an injection's tokens: some ms
FEW = 128  # tokens of one that is read when it is put in: a longer one has turns of its own
TOKEN_BYTES = 4  # as which one counts that has fewer, or none
COPY_BYTES, CALL_BYTES, TEXT_BYTES = 1500, 400, 60  # what these weigh, beside texts
INJECTION_BYTES = 150  # each, beside its tokens
NAME_BYTES = 80  # of a tool, or an argument, in a table
TABLES_BYTES = 350  # and of each tool two more, however few arguments it has
ID_LENGTH = 9  # letters and digits: there are templates that take no other
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_INDEX = attrgetter("index")


class Call(Struct):
    call_id: str
    index: int
    name: str
    arguments: list[str]
    end: int | None = None
    approved: bool = False  # as it stands
    answered: int | None = None  # the output token before which its result stands
    answer: int = 0  # the number of the injection that it is of, from 1 on


class Injected(Struct):
    index: int  # of the output token behind it
    tokens: array[int]
    new_turn: bool
    calls: int  # that had begun before


class Copy(NamedTuple):
    """The reader as it was behind so many output tokens and injections."""

    fed: int
    injected: int
    reader: SpanReader
    bytes: int


def _copy(fed: int, injected: int, reader: SpanReader) -> Copy:
    return Copy(fed, injected, reader.copy(), COPY_BYTES + CHARACTER_BYTES * reader.held)


class SpannedText:
    """Feed it tokens, and it gives the content that each one releases; what else is known with it, as events
    that are still to be told, is for `take_beside`. `one_call`: the first call that is whole ends it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        request_id: str,
        kinds: Kinds | None,
        prompt: Sequence[int],
        stop: tuple[str, ...],
        min_tokens: int,
        *,
        one_call: bool,
    ) -> None:
        self._beside: list[Beside] = []
        self.calls: list[Call] = []
        self.reasoning: list[str] = []
        self.one_call = one_call
        self._request_id = request_id
        self.spelling = tokenizer.spelling
        self.kinds: Kinds = kinds or {}
        offered = None if kinds is None else no_texts(kinds)
        self._reader = SpanReader(tokenizer.spelling, offered, prompt)
        self._copies = [_copy(0, 0, self._reader)]
        self._copied_bytes = self._copies[0].bytes
        self._given_bytes = _kinds_bytes(self.kinds)
        self._read_since = 0  # bytes, since the last of them was made
        self._injected: list[Injected] = []
        self._injected_tokens = 0
        self._unread = 0  # tokens of the last injection
        self.bytes_read = 0  # of injections, ever
        self._turns: list[int] = []  # how many injections there were with each that opened one
        self._has_whole = False  # calls, in the last turn: asked for with every token
        self._content = TextStream(tokenizer, stop, min_tokens)
        self._fed = 0
        self._amended: str | None = None  # the call that is being written anew
        self._told_calls = 0  # ever, those that were rewound too: no two have the same id
        self._past_ids: frozenset[str] = frozenset()
        self._next_ids: Iterator[str] = iter(())  # of calls of its past that are still to be read
        self._text_bytes = 0

    def name_calls(self, ids: Sequence[str], told: int) -> None:
        """The first calls that it reads have these ids, in their order: they are of its past, and `told` is
        how many that has told ever."""
        self._past_ids, self._next_ids, self._told_calls = frozenset(ids), iter(ids), told
        self._given_bytes += sum(map(text_bytes, ids))

    # -- as any text -----------------------------------------------------------------------------

    @property
    def stopped(self) -> str | None:
        if self.one_call and self._has_whole:
            return ""
        return self._content.stopped

    @property
    def released(self) -> int:
        return self._content.released

    @property
    def text(self) -> str:
        return self._content.text

    def set_stop(self, stop: tuple[str, ...], min_tokens: int) -> None:
        self._content.set_stop(stop, min_tokens)

    def hold(self, length: int) -> None:
        self._content.hold(length)

    def feed(self, token: int) -> str:
        self._read_all()
        content = self._take(self._reader.feed(token, self._fed), 1)
        self._fed += 1
        self._note_read((token,))
        return self._content.feed_text(content)

    def flush(self) -> str:
        self._read_all()
        self._add(self._reader.flush())
        return self._content.flush()

    def note_flushed(self) -> None:
        """What was told in the end is of its past: it stands with the last token, from which on whoever reads
        again reads on, and is told as a whole."""
        self._keep_copy()
        self._beside = []

    # -- and beside it ---------------------------------------------------------------------------

    @property
    def called(self) -> bool:
        """Whether there are calls in the model's last turn, and none that is not whole."""
        calls = self.turn_calls
        return bool(calls) and all(call.end is not None for call in calls)

    @property
    def turn_calls(self) -> list[Call]:
        """Those of the model's last turn."""
        self._read_all()
        return self.calls[self._calls_before(self._turns[-1]) if self._turns else 0 :]

    def _calls_before(self, turn: int) -> int:
        return self._injected[turn - 1].calls

    @property
    def turn_begin(self) -> tuple[int, int]:
        """The output token with which the model's last turn begins, and how many injections stand before."""
        number = self._turns[-1] if self._turns else 0
        return self._injected[number - 1].index if number else 0, number

    def turn_texts(self, tokens: Sequence[int]) -> tuple[str, str]:
        """The content of that turn, and its reasoning."""
        self._read_all()
        index, number = self.turn_begin
        before = self._read_until(tokens, index, self._injected[:number]).lengths
        return self._content.text[before.content :], "".join(self.reasoning)[before.reasoning :]

    @property
    def most_held(self) -> int:
        """What is not said yet comes to no more characters, beside what a token spells."""
        return self._reader.held * self.spelling.delimiters.widest + self._content.held

    def foreseen(self, token: int) -> list[Text]:
        """What this will say; it is not fed."""
        parts = self._reader.copy().feed(token, self._fed)
        beside = list(_beside(parts))
        content = "".join(part.text for part in parts if isinstance(part, spans.Content))
        said = self._content.ahead().feed_text(content)
        return [("content", said), *beside] if said else beside

    def take_beside(self) -> Sequence[Beside]:
        """Mostly there is nothing: then no token that waits for its reader keeps a list of that."""
        if not self._beside:
            return ()
        beside, self._beside = self._beside, []
        return beside

    @property
    def lengths(self) -> Lengths:
        self._read_all()
        return self._reader.lengths

    @property
    def weight(self) -> int:
        """About how many bytes of memory it takes."""
        copies = COPY_BYTES + self._copied_bytes + self._given_bytes
        injected = INJECTION_BYTES * len(self._injected) + 4 * self._injected_tokens
        return copies + CALL_BYTES * len(self.calls) + 2 * self._text_bytes + injected + self._content.weight

    @property
    def reasoning_tokens(self) -> int:
        self._read_all()
        return self._reader.reasoning_tokens

    def reasoning_room(self, limit: int) -> int:
        self._read_all()
        return self._reader.reasoning_room(limit)

    def approve(self, call: Call) -> None:
        self.calls = [replace(one, approved=True) if one is call else one for one in self.calls]

    def amend(self, call_id: str) -> None:
        """What is injected next goes on with this call, or begins it again."""
        self._amended = call_id

    def inject(self, tokens: Sequence[int], *, new_turn: bool, answers: Collection[str] = ()) -> None:
        """Context before the next token: in the model's own turn it may be part of a call. A long one is read
        later, in slices, or as soon as anything is asked of it. `answers`: the calls whose results it has."""
        self._read_all()
        if answers:
            self.calls = [  # where it is told twice, the first time stands as long as the other does
                replace(call, answered=self._fed, answer=len(self._injected) + 1)
                if call.answered is None and call.call_id in answers
                else call
                for call in self.calls  # others, since forks have the same ones
            ]
        injected = Injected(self._fed, array("i", tokens), new_turn, len(self.calls))
        self._injected.append(injected)
        self._injected_tokens += len(tokens)
        if new_turn:
            self._turns.append(len(self._injected))
            self._has_whole = False
            self._add(_inject(self._reader, injected))
            self._note_read(tokens)
        else:
            self._unread = len(tokens)
            if len(tokens) <= FEW:
                self.read_on()

    @property
    def reading(self) -> bool:
        return bool(self._unread)

    @property
    def read(self) -> tuple[int, Lengths]:
        """Of what was injected so many tokens, and with them so much is known."""
        return self.injected_read, self._reader.lengths

    @property
    def injected_read(self) -> int:
        """Tokens that were injected, and have been read."""
        return self._injected_tokens - self._unread

    def read_on(self) -> None:
        tokens = memoryview(self._injected[-1].tokens)
        unread = tokens[len(tokens) - self._unread :]
        sizes = accumulate(map(self._size, unread))
        some = unread[: next((at for at, size in enumerate(sizes, 1) if size >= READ_AT_ONCE), len(unread))]
        self._unread -= len(some)
        self._add(self._reader.inject(some, self._fed))
        size = sum(map(self._size, some))
        self._read_since += size
        self.bytes_read += size
        if not self._unread:
            self._amended = None
            self._note_read(())

    def _size(self, token: int) -> int:
        return max(TOKEN_BYTES, len(self.spelling.pieces.get(token, b"")))

    def _read_all(self) -> None:
        while self._unread:
            self.read_on()

    def _add(self, late: list[Part]) -> None:
        """What is said without a token of its own."""
        self._content.add_late(self._take(late, 0))

    def _note_read(self, tokens: Sequence[int]) -> None:
        self._read_since += sum(map(self._size, tokens))
        if self._read_since >= COPY_EVERY and self._read_since >= self._reader.held // COPY_SHARE:
            self._keep_copy()

    def _keep_copy(self) -> None:
        self._copies.append(_copy(self._fed, len(self._injected), self._reader))
        self._copied_bytes += self._copies[-1].bytes
        self._read_since = 0

    def rewound(
        self, tokens: Sequence[int], index: int, sent: int, stop: tuple[str, ...], min_tokens: int
    ) -> SpannedText:
        """Itself, behind the first `index` of the `tokens` that were fed, and what was injected there or
        before."""
        self._read_all()
        kept = bisect_right(self._injected, index, key=_INDEX)
        self._injected_tokens -= sum(len(one.tokens) for one in self._injected[kept:])
        del self._injected[kept:]
        del self._turns[bisect_right(self._turns, kept) :]
        while self._copies[-1].fed > index or self._copies[-1].injected > kept:
            self._copied_bytes -= self._copies.pop().bytes
        self._reader, self._fed = self._read_until(tokens, index, self._injected), index
        last = self._copies[-1]
        again = self._injected[last.injected :]
        self._read_since = sum(
            map(self._size, chain(tokens[last.fed : index], *(one.tokens for one in again)))
        )
        self._note_read(())
        lengths = self._reader.lengths
        fed = max(sent, self._fed_content(tokens))
        self._content = self._content.rewound_text(fed, lengths.content, index, sent, stop, min_tokens)
        calls = self._cut_texts(lengths)
        self.calls = [
            call if call.answered is None or call.answer <= kept else replace(call, answered=None)
            for call in calls
        ]
        self._has_whole = any(call.end is not None for call in self.turn_calls)
        self._beside = []
        return self

    def _fed_content(self, tokens: Sequence[int]) -> int:
        """Code points of the content that came with the last token, or before: the others did with what was
        put in behind it."""
        before = self._injected[: bisect_left(self._injected, self._fed, key=_INDEX)]
        put_in_behind = len(before) < len(self._injected)
        reader = self._read_until(tokens, self._fed, before) if put_in_behind else self._reader
        return reader.lengths.content

    def _cut_texts(self, lengths: Lengths) -> list[Call]:
        """Of reasoning only so much stands; returns the calls that do. Weighed anew are those texts alone
        that are others now: there may be very many calls."""
        first = max(0, lengths.calls - 1)
        cut = [self.reasoning, *(call.arguments for call in self.calls[first:])]
        self.reasoning = ["".join(self.reasoning)[: lengths.reasoning]]
        calls = self._calls_until(lengths)
        stand = [self.reasoning, *(call.arguments for call in calls[first:])]
        self._text_bytes += sum(map(_weight, stand)) - sum(map(_weight, cut))
        return calls

    def forked(self, request_id: str) -> SpannedText:
        """Another, to be rewound: this one stays as it is."""
        self._read_all()
        again = copy(self)
        again._request_id = request_id
        again._copies, again._injected, again._turns = self._copies[:], self._injected[:], self._turns[:]
        return again

    def snapshot(
        self, tokens: Sequence[int], count: int, *, told: Lengths | None, flushed: bool
    ) -> tuple[Lengths, str, list[SnapshotCall]]:
        """What was known with the first `count` tokens and all that was injected until then; `told`: or no
        more than this of it; `flushed`: or with the stream's end."""
        self._read_all()
        lengths = self.lengths if flushed else told
        if lengths is None:
            before = self._injected[: bisect_right(self._injected, count, key=_INDEX)]
            lengths = self._read_until(tokens, count, before).lengths
        calls = [
            SnapshotCall(
                index=call.index,
                call_id=call.call_id,
                name=call.name,
                arguments="".join(call.arguments),
                end=call.end,
            )
            for call in self._calls_until(lengths)
        ]
        return lengths, "".join(self.reasoning)[: lengths.reasoning], calls

    def _calls_until(self, lengths: Lengths) -> list[Call]:
        calls = self.calls[: lengths.calls]
        if calls:
            last = calls[-1]
            arguments = "".join(last.arguments)[: lengths.arguments]
            calls[-1] = replace(last, arguments=[arguments])
            if lengths.open:
                calls[-1].end, calls[-1].approved = None, False
        return calls

    def reader_at(self, tokens: Sequence[int], index: int, injected: int) -> SpanReader:
        """The reader as it was behind so many output tokens, and tokens that were injected."""
        return self._read_until(tokens, index, _first_of(self._injected, injected))

    def before_call(self, tokens: Sequence[int], call: Call) -> tuple[SpanReader, int, int]:
        """The reader as it was before a call, in the turn of which it is; and how many injections stand
        before, and tokens behind the prompt."""
        turns = bisect_right(self._turns, self.calls.index(call), key=self._calls_before)
        opened = self._turns[turns - 1] if turns else 0
        before = max(opened, bisect_left(self._injected, call.index, key=_INDEX))
        injected = self._injected[:before]
        behind = call.index + sum(len(one.tokens) for one in injected)
        return self._read_until(tokens, call.index, injected), before, behind

    def cut_injected(self, count: int) -> None:
        """Of what was injected only the first so many tokens stand: `rewound` reads again."""
        self._read_all()
        self._injected, before = _first_of(self._injected, count), self._injected
        self._injected_tokens = count
        whole = _in_common(self._injected, before)
        while self._copies[-1].injected > whole:
            self._copied_bytes -= self._copies.pop().bytes

    def _read_until(self, tokens: Sequence[int], index: int, injected: Sequence[Injected]) -> SpanReader:
        """The reader as it was behind so many output tokens, and these injections, of which the last may be a
        part of what it was: read on from the last copy before."""
        self._read_all()
        whole = _in_common(injected, self._injected)
        copy = next(one for one in reversed(self._copies) if one.fed <= index and one.injected <= whole)
        reader, next_injected = copy.reader.copy(), copy.injected
        for at in range(copy.fed, index + 1):
            while next_injected < len(injected) and injected[next_injected].index == at:
                _inject(reader, injected[next_injected])
                next_injected += 1
            if at < index:
                reader.feed(tokens[at], at)
        return reader

    def _take(self, parts: list[Part], count: int) -> str:
        """Keep what stands beside the content, which is returned."""
        content = ""
        for part in parts:
            match part:
                case spans.Content(text):
                    content += text
                case spans.Reasoning(text):
                    self._keep(self.reasoning, text)
                    self._tell(
                        Reasoning(request_id=self._request_id, index=self._fed, count=count, delta=text)
                    )
                case spans.CallBegun(begin, name):
                    self._begin_call(begin, name)
                case spans.Arguments(text):
                    self._keep(self.calls[-1].arguments, text)
                    self._tell(
                        ToolArguments(
                            request_id=self._request_id,
                            index=self._fed,
                            count=count,
                            call_id=self.calls[-1].call_id,
                            delta=text,
                        )
                    )
                case spans.CallEnded(end):
                    call = self.calls[-1]
                    self._end_call(call, end)
                    self._tell(
                        ToolCallDone(
                            request_id=self._request_id, index=call.index, end=end, call_id=call.call_id
                        )
                    )
        return content

    def _begin_call(self, begin: int, name: str) -> None:
        told = next(self._next_ids, None) or self._new_id()
        call, self._amended = Call(self._amended or told, begin, name, []), None
        self.calls.append(call)
        self._tell(ToolCall(request_id=self._request_id, index=begin, call_id=call.call_id, name=name))

    def _new_id(self) -> str:
        """That no call of its past has, either: whoever has that may not have heard of all of them."""
        self._told_calls += 1
        while (call_id := call_id_of(self._request_id, self._told_calls)) in self._past_ids:
            self._told_calls += 1
        return call_id

    def _end_call(self, call: Call, end: int) -> None:
        """A piece for each token takes several times its arguments."""
        call.end, pieces, self._has_whole = end, call.arguments, True
        call.arguments = ["".join(pieces)]
        self._text_bytes += _weight(call.arguments) - _weight(pieces)

    def _keep(self, texts: list[str], text: str) -> None:
        texts.append(text)
        self._text_bytes += TEXT_BYTES + len(text)

    def _tell(self, event: Beside) -> None:
        self._beside.append(event)


def _kinds_bytes(tools: Kinds) -> int:
    names = (name for tool, arguments in tools.items() for name in (tool, *arguments))
    return TABLES_BYTES * len(tools) + sum(NAME_BYTES + text_bytes(name) for name in names)


def _beside(parts: Iterable[Part]) -> Iterator[Text]:
    for part in parts:
        match part:
            case spans.Reasoning(text):
                yield "reasoning", text
            case spans.CallBegun(_, name):
                yield "call", name
            case spans.Arguments(text):
                yield "arguments", text
            case spans.CallEnded():
                yield "called", ""


def _weight(texts: Sequence[str]) -> int:
    return TEXT_BYTES * len(texts) + sum(map(len, texts))


def call_id_of(request_id: str, told: int) -> str:
    """Of the call that was told behind so many others."""
    number = int.from_bytes(blake2b(f"{request_id}:{told}".encode(), digest_size=8).digest())
    letters = ""
    for _ in range(ID_LENGTH):
        number, at = divmod(number, len(_ALPHABET))
        letters += _ALPHABET[at]
    return letters


def _inject(reader: SpanReader, injected: Injected) -> list[Part]:
    if injected.new_turn:
        return reader.begin_turn(injected.tokens, injected.index)
    return reader.inject(injected.tokens, injected.index)


def _first_of(injections: Sequence[Injected], count: int) -> list[Injected]:
    """Those of the first so many tokens; of the last perhaps a part."""
    kept = list[Injected]()
    for one in injections:
        if count <= 0:
            break
        kept.append(one if len(one.tokens) <= count else replace(one, tokens=one.tokens[:count]))
        count -= len(one.tokens)
    return kept


def _in_common(some: Sequence[Injected], others: Sequence[Injected]) -> int:
    """How many of them are the same ones, from the first."""
    return len(some) - bool(some and some[-1] is not others[len(some) - 1])
