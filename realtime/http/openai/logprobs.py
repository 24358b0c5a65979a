"""Log probabilities as OpenAI's API has them: tokens are text there, and numbers in our protocol.

Each token's are encoded as they come, once: as bytes they take half of what they take as objects, and a whole
answer's are never encoded in one go.
"""

from __future__ import annotations

from codecs import getincrementaldecoder

import msgspec
from msgspec import Raw, Struct

from midstream.protocol import TokenLogprob
from realtime.http.openai.response_types import ChatLogprob, ChatLogprobs, TextLogprobs, TopLogprob
from realtime.text.tokenizer import Tokenizer

LEAST = -9999.0  # what never happens; JSON has no infinity
ENTRY_BYTES = 340  # what one takes beside its JSON, as measured, with the number of its token

_encode = msgspec.json.Encoder().encode
_decoder = getincrementaldecoder("utf-8")


class EncodedLogprob(Struct, frozen=True):
    """Of one token: its bytes, its own log probability, and in JSON what its API says in full."""

    spelling: bytes
    logprob: float
    json: Raw

    @property
    def size(self) -> int:
        return ENTRY_BYTES + len(self.json)


def chat_logprob(told: TokenLogprob, tokenizer: Tokenizer) -> EncodedLogprob:
    top = [_top(token, logprob, tokenizer) for token, logprob in told.top]
    own = _top(told.token, told.logprob, tokenizer)
    json = _encode(ChatLogprob(own.token, own.logprob, own.bytes, top))
    return EncodedLogprob(tokenizer.token_bytes(told.token), own.logprob, Raw(json))


def _top(token: int, logprob: float, tokenizer: Tokenizer) -> TopLogprob:
    return TopLogprob(_spelled(token, tokenizer), max(logprob, LEAST), list(tokenizer.token_bytes(token)))


def chat_logprobs(logprobs: list[EncodedLogprob]) -> ChatLogprobs:
    return ChatLogprobs([one.json for one in logprobs])


def text_logprob(told: TokenLogprob, tokenizer: Tokenizer) -> EncodedLogprob:
    """In full are told the most likely tokens, and the one that was taken."""
    pairs = [*told.top, (told.token, told.logprob)]
    json = _encode({_spelled(token, tokenizer): max(logprob, LEAST) for token, logprob in pairs})
    return EncodedLogprob(tokenizer.token_bytes(told.token), max(told.logprob, LEAST), Raw(json))


class Places:
    """Where in a text its tokens begin, in characters. A character may be of several tokens, and is there
    with the last."""

    def __init__(self) -> None:
        self._decoder = _decoder("replace")
        self._held_back = 0  # characters that were spelt and not told: they may begin a stop string

    def of(self, spellings: list[bytes], told: int, telling: int) -> list[int]:
        """Of the next tokens, with which so many characters are told behind so many."""
        end, begins = told + self._held_back, []
        for spelling in spellings:
            begins.append(end)
            end += len(self._decoder.decode(spelling))
        self._held_back = max(0, end - told - telling)  # what was spelt unheard is known when it is told
        return begins

    def rewind(self) -> None:
        """It may be to the midst of a character, or of what is held back."""
        self._decoder = _decoder("ignore")
        self._held_back = 0


def text_logprobs(logprobs: list[EncodedLogprob], offsets: list[int]) -> TextLogprobs:
    """`offsets`: where in the text each of them begins."""
    tokens = [_text(one.spelling) for one in logprobs]
    return TextLogprobs(tokens, [one.logprob for one in logprobs], [one.json for one in logprobs], offsets)


def _spelled(token: int, tokenizer: Tokenizer) -> str:
    return _text(tokenizer.token_bytes(token))


def _text(spelling: bytes) -> str:
    return spelling.decode(errors="replace")
