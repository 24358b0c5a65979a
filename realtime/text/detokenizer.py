"""The incremental detokenizer: tokens to text one at a time, whole Unicode, and never a part of a stop
string.

A `TextStream` is one stream's text on its way out. It knows bytes, characters and stop strings; it knows no
client, no event, and not why a stream ends. Text leaves it in order and is never taken back: to rewind, go on
with another one (`rewound`), which costs what it takes back and not what stands.

The text is exactly what the model's own tokenizer would decode from all tokens at once, special tokens left
out, with one exception: where a SentencePiece model writes a run of byte tokens that is not valid UTF-8, the
tokenizer replaces every byte of the run by U+FFFD; here the valid characters of the run stand, as they were
already sent when the run turned out to be broken.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from copy import copy
from sys import getsizeof

from realtime.text.stop_strings import StopMatcher, matcher_for
from realtime.text.tokenizer import Tokenizer

LONGEST_PARTIAL = 4  # bytes behind which no beginning of a character can stand
WIDEST = 4  # bytes of a character


class TextStream:
    """Feed it tokens, and it gives the text that each one releases.

    The stop string that ends earliest is met; of several that end together, the longest. It must end in a
    token of index `min_tokens` or later, but may begin in one before. Text before it is released, nothing
    from it on.

    `stopped` is the stop string that was met. `released` counts the code points that were let out.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = (), min_tokens: int = 0) -> None:
        self._tokenizer = tokenizer
        self._token_bytes = tokenizer.pieces
        self._whole = tokenizer.pieces.whole
        self._leading_spaces = tokenizer.pieces.leading_spaces
        self._empty_tokens = 0  # fed before leading spaces were done with
        self._partial = b""  # the beginning of a character
        self._text = bytearray()  # that is released, in UTF-8
        self._held = ""  # text that is not released
        self._late = ""  # and that has not been looked at
        self._matcher: StopMatcher | None = None
        self._state = 0
        self._fed = 0
        self._broken = 0  # code points that stand for what was incomplete in the end
        self._ended = 0  # tokens whose end was told, though others may follow
        self.released = 0
        self.stopped: str | None = None
        self.set_stop(stop, min_tokens)

    @property
    def text(self) -> str:
        """All that was released."""
        return self._text.decode()

    @property
    def held(self) -> int:
        """Characters that are not released."""
        return len(self._held) + len(self._late)

    def ahead(self) -> TextStream:
        """Another that goes on here, without what is released; this one stays as it is."""
        again = copy(self)
        again._text = bytearray()
        return again

    @property
    def weight(self) -> int:
        """About how many bytes of memory its text takes."""
        return getsizeof(self._text) + WIDEST * (len(self._held) + len(self._late))

    def feed(self, token: int) -> str:
        """The text that this token releases."""
        self._fed += 1
        text = self._whole.get(token)
        if text is None or self._partial or self._leading_spaces:
            text = self._decode(self._token_bytes.bytes.get(token, b""))
        if self._matcher is not None or self._held:
            text = self._release(text)
        self.released += len(text)
        self._text += text.encode()
        return text

    def feed_text(self, text: str) -> str:
        """The same, for a token of which another has read what it says here."""
        self._fed += 1
        text, self._late = self._late + text, ""
        return self._let_out(self._release(text))

    def add_late(self, text: str) -> None:
        """Text of tokens that were fed, which goes out with the next one."""
        self._late += text

    def flush(self) -> str:
        """The end of the stream: what was held for want of a continuation, incomplete bytes as U+FFFD."""
        if self.stopped is not None:  # all of it stands behind a stop string
            return ""
        broken = self._decode(b"", final=True)
        self._broken += len(broken)
        text = self._release(self._late + broken)
        self._late = ""
        if self.stopped is None:
            text, self._held = text + self._held, ""
            self._state = 0
        return self._let_out(text)

    def note_flushed(self) -> None:
        """What was told in the end stands with the last token, and others may follow: a character that was
        incomplete there never becomes whole."""
        self._ended, self._broken = self._fed, 0

    def set_stop(self, stop: tuple[str, ...], min_tokens: int = 0) -> None:
        """Other stop strings from the next token on: there they must end, but may begin in text that is held.

        Text that need not be held any longer goes out with the next token.
        """
        if self.stopped is not None:
            return
        self._matcher = matcher_for(stop) if stop else None
        self._min_tokens = min_tokens
        self._state = 0 if self._matcher is None else _state_behind(self._held, self._matcher)

    def hold(self, length: int) -> None:
        """Of what was released all beyond so many code points is held again, and goes out as what is held
        does."""
        if length < self.released and self.stopped is None:
            self._begin_at(length, self.text + self._held)
            self._state = 0 if self._matcher is None else _state_behind(self._held, self._matcher)

    def rewound(
        self, tokens: Sequence[int], index: int, sent: int, stop: tuple[str, ...], min_tokens: int
    ) -> TextStream:
        """One that goes on behind the first `index` of the `tokens` that were fed. `sent` code points of
        their text have been let out; what may begin a stop string is held once more, and `released` says how
        much of the rest stands. None of the tokens that stand stops it."""
        since = self._ended if self._ended <= index else 0
        behind = TextStream(self._tokenizer)  # decodes what is taken back
        if self._leading_spaces or index < self._empty_tokens:
            for token in tokens[:index]:
                behind.feed(token)
        else:
            behind._leading_spaces = 0
            behind._partial = self._partial_before(tokens, index, since)
        again = TextStream(self._tokenizer, stop, min_tokens)
        again._leading_spaces, again._partial, again._fed = behind._leading_spaces, behind._partial, index
        again._empty_tokens = min(self._empty_tokens, index)
        again._ended = since
        taken_back = self._broken
        if since < self._ended:
            taken_back += behind._length(tokens[index : self._ended]) + len(behind.flush())
        taken_back += behind._length(tokens[max(index, self._ended) :])
        decoded = self.text + self._held
        again._begin(decoded[: len(decoded) - taken_back], sent)
        return again

    def rewound_text(
        self, fed: int, length: int, index: int, sent: int, stop: tuple[str, ...], min_tokens: int
    ) -> TextStream:
        """The same, of one that was fed texts: `fed` code points came with the first `index` tokens, and late
        all behind them, up to `length`."""
        again = TextStream(self._tokenizer, stop, min_tokens)
        again._fed = index
        text = self.text + self._held + self._late
        again._begin(text[:fed], sent)
        again._late = text[fed:length]  # a stop string may stand in it, whatever it was looked at for
        return again

    def _length(self, tokens: Sequence[int]) -> int:
        """Code points that these come to, read in one go: a fork may leave very many behind."""
        at = length = 0
        while at < len(tokens) and self._leading_spaces:
            length += len(self.feed(tokens[at]))
            at += 1
        known = self._token_bytes.bytes
        data = self._partial + b"".join([known.get(token, b"") for token in tokens[at:]])
        text, used = utf_8_decode(data, "replace", False)
        self._partial = data[used:]
        return length + len(text)

    def _begin(self, decoded: str, sent: int) -> None:
        held = 0
        if self._matcher is not None:
            self._state = _state_behind(decoded, self._matcher)
            held = self._matcher.held[self._state]
        self._begin_at(min(sent, len(decoded) - held), decoded)

    def _begin_at(self, released: int, decoded: str) -> None:
        self.released = released
        self._text = bytearray(decoded[:released].encode())
        self._held = decoded[released:]

    def _partial_before(self, tokens: Sequence[int], index: int, since: int) -> bytes:
        """The beginning of a character that stands at the end of the first `index` tokens, of those from
        `since` on."""
        data = b""
        while index > since and len(data) < LONGEST_PARTIAL:
            index -= 1
            data = self._token_bytes.bytes.get(tokens[index], b"") + data
        return data[utf_8_decode(data, "replace", False)[1] :]

    def _decode(self, data: bytes, final: bool = False) -> str:
        data = self._partial + data
        text, used = utf_8_decode(data, "replace", final)
        self._partial = data[used:]
        if self._leading_spaces:
            self._empty_tokens = self._fed
            while self._leading_spaces and text.startswith(" "):
                text = text[1:]
                self._leading_spaces -= 1
            if text:
                self._leading_spaces = 0
        return text

    def _let_out(self, text: str) -> str:
        self.released += len(text)
        self._text += text.encode()
        return text

    def _release(self, text: str) -> str:
        """What of the held text and this may go out now."""
        if self.stopped is not None:
            return ""
        if self._matcher is None:
            text, self._held = self._held + text, ""
            return text
        return self._screen(self._matcher, text)

    def _screen(self, matcher: StopMatcher, text: str) -> str:
        armed = self._fed > self._min_tokens
        buffer = self._held + text
        state = self._state
        for end, char in enumerate(text, len(self._held) + 1):
            state = matcher.step(state, char)
            stop = matcher.met(state)
            if stop is not None and armed:
                self.stopped = stop
                return self._split(buffer, end - len(stop))
        self._state = state
        return self._split(buffer, len(buffer) - matcher.held[state])

    def _split(self, buffer: str, at: int) -> str:
        self._held = buffer[at:]
        return buffer[:at]


def _state_behind(text: str, matcher: StopMatcher) -> int:
    state = 0
    for char in text[-matcher.longest :]:
        state = matcher.step(state, char)
    return state
