"""The output of one stream so far, and how to truncate it.

Output tokens, how much text each of them released, and the injections among them. Pure: it knows the
tokenizer, stop strings and the reader of calls, and nothing of events, credit or the engine.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from copy import copy
from itertools import accumulate
from operator import itemgetter

from realtime.stream.spanned_text import Call, SpannedText
from realtime.text.detokenizer import TextStream
from realtime.text.tokenizer import Tokenizer
from realtime.tools.parts import Lengths

INJECTION_BYTES = 150  # each, beside its tokens
MOST_STOPPED = 512  # characters of a stop string and what is behind: the longest, and as much of a token


class Output:
    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...],
        min_tokens: int,
        spans: SpannedText | None = None,
    ) -> None:
        """`spans`: the reader of an output that has more than content, with the same stop strings."""
        self.tokens = array("i")  # a number in four bytes: there are many, and streams stay long
        self.injections: list[tuple[int, array[int]]] = []  # (index of the output token behind it, tokens)
        self._injected = 0  # tokens of all of them
        self._injected_before = array("q")  # each
        self._ends = array("q")  # code points released up to and with each token
        self._min_tokens = min_tokens
        self.spans = spans
        self.reader: TextStream | SpannedText = spans or TextStream(tokenizer, stop, min_tokens)
        self._pieces = tokenizer.pieces.bytes

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def stopped(self) -> str | None:
        """The stop string that was met."""
        return self.reader.stopped

    @property
    def text_length(self) -> int:
        """Code points released, of what stands."""
        return self.reader.released

    @property
    def lengths(self) -> tuple[int, int, int]:
        """Of the text that is released, of the reasoning, and of the last call's arguments."""
        beside = Lengths() if self.spans is None else self.spans.lengths
        return self.text_length, beside.reasoning, beside.arguments

    def add(self, token: int) -> str:
        """One token more; returns the text that it releases."""
        reader = self.reader
        delta = reader.feed(token)
        self.tokens.append(token)
        self._ends.append(reader.released)
        return delta

    def flush(self) -> str:
        """The text that was held back for want of a continuation: there is none."""
        return self.reader.flush()

    def flush_with_last(self) -> None:
        """The same, released with the last token."""
        self.reader.flush()
        self.reader.note_flushed()
        if self._ends:
            self._ends[-1] = self.reader.released

    def set_stop(self, stop: tuple[str, ...], min_tokens: int) -> None:
        self._min_tokens = min_tokens
        self.reader.set_stop(stop, min_tokens)

    def inject(
        self,
        tokens: list[int],
        *,
        new_turn: bool = False,
        answers: Collection[str] = (),
        amends: str | None = None,
    ) -> None:
        """These context tokens now stand before the next output token; `new_turn`: and close the model's
        turn; `answers`: with the results of these calls; `amends`: they are of this one."""
        if self.spans is not None:
            if amends is not None:
                self.spans.amend(amends)
            self.spans.inject(tokens, new_turn=new_turn, answers=answers)
        self.injections.append((len(self.tokens), array("i", tokens)))
        self._injected_before.append(self._injected)
        self._injected += len(tokens)

    @property
    def ends_injected(self) -> bool:
        """Whether something was injected behind its last token."""
        return bool(self.injections) and self.injections[-1][0] == len(self.tokens)

    def injected(self, before: int | None = None) -> int:
        """Tokens injected; with `before`, only those that stand there or earlier."""
        if before is None:
            return self._injected
        number = bisect_right(self.injections, before, key=itemgetter(0))
        return self._injected_before[number] if number < len(self.injections) else self._injected

    @property
    def injection_bytes(self) -> int:
        return INJECTION_BYTES * len(self.injections) + 4 * self._injected

    def text(self, count: int, *, flushed: bool) -> str:
        """What was released with the first `count` tokens; `flushed`: and with the stream's end."""
        return self.reader.text if flushed else self.reader.text[: self.length_with(count)]

    def content(self) -> str:
        """All that was released."""
        return self.reader.text

    def reasoning(self) -> str:
        return "" if self.spans is None else "".join(self.spans.reasoning)

    @property
    def calls(self) -> list[Call]:
        return [] if self.spans is None else self.spans.calls

    def length_with(self, tokens: int) -> int:
        """Of the content that was released with the first so many."""
        return self._ends[tokens - 1] if tokens else 0

    def token_with(self, character: int) -> int:
        """With which this character of the content was released."""
        return bisect_right(self._ends, character)

    def token_that_spells(self, text: str, since: int) -> int:
        """In which the text begins last, of what the tokens from this one on say; or that one."""
        pieces = [self._pieces.get(token, b"") for token in self.tokens[since:]]
        begin = b"".join(pieces).rfind(text.encode())
        if begin < 0:
            return since
        return since + bisect_right(list(accumulate(map(len, pieces))), begin)

    def flushed(self, stop: tuple[str, ...]) -> tuple[Output, str]:
        """As it will be when nothing follows, and what is said then; at a stop string, which nobody is told,
        no more than a token has brought. This one stays as it is."""
        again = self.forked("", len(self), stop, self._min_tokens)
        # What may begin a stop string that was put in since is said already, and stands back in the other.
        back = len(self.content()) - len(again.content())
        said = again.flush()[back:]
        return again, said[:MOST_STOPPED] if self.stopped else said

    def context(self) -> list[int]:
        """All that stands behind the prompt, in the model's order: the output, and injections among it."""
        tokens, start = array("i"), 0
        for index, injected in self.injections:
            tokens += self.tokens[start:index] + injected
            start = index
        return list(tokens + self.tokens[start:])

    def place(self, behind: int) -> tuple[int, int]:
        """Of the first so many tokens, or all if there are fewer, injections among them: how many are output,
        and how many are not."""
        injected = 0
        for index, tokens in self.injections:
            stays = min(len(tokens), behind - injected - index)
            if stays <= 0:
                break
            injected += stays
        return min(behind - injected, len(self)), injected

    def known_from(self, index: int, number: int, until: int) -> Iterator[int]:
        """All that stands from output token `index` and injection `number` on, to before token `until`."""
        for before, tokens in self.injections[number:]:
            if before > until:
                break
            yield from self.tokens[index:before]
            yield from tokens
            index = before
        yield from self.tokens[index:until]

    def cut(self, index: int, stop: tuple[str, ...], injected: int | None = None) -> None:
        """Take back output from `index` on, and injections behind it. `injected`: so many of the tokens that
        were injected stay, where not all before `index` do.

        Text that may begin one of the stop strings, which may be others than when it was sent, does not stand
        either: it comes again once it is known to be none.
        """
        if injected is not None and self.spans is not None:
            self.spans.cut_injected(injected)
        sent = self.length_with(index)
        self.reader = self.reader.rewound(self.tokens, index, sent, stop, self._min_tokens)
        del self.tokens[index:], self._ends[index:]
        self._cut_injections(self.injected(before=index) if injected is None else injected)
        self._note_held()

    def _cut_injections(self, count: int) -> None:
        """No more than the first so many tokens of them stand, of the last perhaps a part."""
        number = bisect_left(self._injected_before, count)
        del self.injections[number:], self._injected_before[number:]
        self._injected = count
        if number:
            index, tokens = self.injections[-1]
            self.injections[-1] = index, tokens[: count - self._injected_before[-1]]

    def hold(self, length: int) -> None:
        """No more than so many code points of the content stand: a rewind had more be held, by stop strings
        that came when it had been released."""
        self.reader.hold(length)
        self._note_held()

    def _note_held(self) -> None:
        """What is held once more was released with the last tokens."""
        for at in range(len(self) - 1, -1, -1):
            if self._ends[at] <= self.reader.released:
                break
            self._ends[at] = self.reader.released

    def forked(self, request_id: str, index: int, stop: tuple[str, ...], min_tokens: int) -> Output:
        """Another, that goes on behind the first `index` tokens; this one stays as it is."""
        again = copy(self)
        again.tokens, again._ends = self.tokens[:], self._ends[:]
        again.injections, again._injected_before = self.injections[:], self._injected_before[:]
        again._min_tokens = min_tokens
        if self.spans is not None:
            again.spans = again.reader = self.spans.forked(request_id)
        again.cut(index, stop)
        return again
