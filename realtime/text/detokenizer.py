"""The incremental detokenizer: tokens to text one at a time, whole Unicode, and never a part of a stop
string.

A `TextStream` is one stream's text on its way out. It knows bytes, characters and stop strings; it knows no
client, no event, and not why a stream ends. Text leaves it in order and is never taken back: to rewind, build
another one and `replay` the tokens that stand.

The text is exactly what the model's own tokenizer would decode from all tokens at once, special tokens left
out, with one exception: where a SentencePiece model writes a run of byte tokens that is not valid UTF-8, the
tokenizer replaces every byte of the run by U+FFFD; here the valid characters of the run stand, as they were
already sent when the run turned out to be broken.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Iterable

from realtime.text.stop_strings import StopMatcher
from realtime.text.tokenizer import Tokenizer


class TextStream:
    """Feed it tokens, and it gives the text that each one releases.

    The stop string that ends earliest is met; of several that end together, the longest. It must end in a
    token of index `min_tokens` or later, but may begin in one before. Text before it is released, nothing
    from it on.

    `stopped` is the stop string that was met. `released` counts the code points that were let out.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = (), min_tokens: int = 0) -> None:
        self._pieces = tokenizer.pieces
        self._whole = tokenizer.pieces.whole
        self._leading_spaces = tokenizer.pieces.leading_spaces
        self._partial = b""  # the beginning of a character
        self._held = ""  # text that is not released
        self._matcher: StopMatcher | None = None
        self._state = 0
        self._fed = 0
        self.released = 0
        self.stopped: str | None = None
        self.set_stop(stop, min_tokens)

    def feed(self, token: int) -> str:
        """The text that this token releases."""
        self._fed += 1
        text = self._whole.get(token)
        if text is None or self._partial or self._leading_spaces:
            text = self._decode(self._pieces.bytes.get(token, b""))
        if self._matcher is not None or self._held:
            text = self._release(text)
        self.released += len(text)
        return text

    def flush(self) -> str:
        """The end of the stream: what was held for want of a continuation, incomplete bytes as U+FFFD."""
        text = self._release(self._decode(b"", final=True))
        text, self._held = text + self._held, ""
        self.released += len(text)
        return text

    def set_stop(self, stop: tuple[str, ...], min_tokens: int = 0) -> None:
        """Other stop strings from the next token on: there they must end, but may begin in text that is held.

        Text that need not be held any longer goes out with the next token.
        """
        if self.stopped is not None:
            return
        self._matcher = StopMatcher(stop) if stop else None
        self._min_tokens = min_tokens
        self._state = 0
        if self._matcher is not None:
            for char in self._held:
                self._state = self._matcher.step(self._state, char)

    def replay(self, tokens: Iterable[int], sent: int) -> None:
        """Begin with tokens that already stand, of whose text a client has `sent` code points. None stops it.

        `released` is then how much of what the client has still stands. Text beyond that goes out next.
        """
        text = self._replayed(tokens)
        self.released = min(sent, self.released)
        self._held = text[self.released :] + self._held

    def _replayed(self, tokens: Iterable[int]) -> str:
        min_tokens, self._min_tokens = self._min_tokens, 2**63
        text = "".join(map(self.feed, tokens))
        self._min_tokens = min_tokens
        return text

    def _decode(self, data: bytes, final: bool = False) -> str:
        data = self._partial + data
        text, used = utf_8_decode(data, "replace", final)
        self._partial = data[used:]
        while self._leading_spaces and text.startswith(" "):
            text = text[1:]
            self._leading_spaces -= 1
        if text:
            self._leading_spaces = 0
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
            stop = matcher.met[state]
            if stop is not None and armed:
                self.stopped, self._held = stop, ""
                return buffer[: end - len(stop)]
        self._state = state
        free = len(buffer) - matcher.held[state]
        self._held = buffer[free:]
        return buffer[:free]
