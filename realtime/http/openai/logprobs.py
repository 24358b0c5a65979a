"""Log probabilities as OpenAI's API has them: tokens are text there, and numbers in our protocol."""

from __future__ import annotations

from midstream.protocol import TokenLogprob
from realtime.http.openai.response_types import ChatLogprob, ChatLogprobs, TextLogprobs, TopLogprob
from realtime.text.tokenizer import Tokenizer

LEAST = -9999.0  # what never happens; JSON has no infinity


def chat_logprobs(logprobs: list[TokenLogprob], tokenizer: Tokenizer) -> ChatLogprobs:
    return ChatLogprobs([_chat_logprob(told, tokenizer) for told in logprobs])


def _chat_logprob(told: TokenLogprob, tokenizer: Tokenizer) -> ChatLogprob:
    top = [_top(token, logprob, tokenizer) for token, logprob in told.top]
    own = _top(told.token, told.logprob, tokenizer)
    return ChatLogprob(own.token, own.logprob, own.bytes, top)


def _top(token: int, logprob: float, tokenizer: Tokenizer) -> TopLogprob:
    return TopLogprob(_spelled(token, tokenizer), max(logprob, LEAST), list(tokenizer.token_bytes(token)))


def text_logprobs(logprobs: list[TokenLogprob], tokenizer: Tokenizer, offset: int) -> TextLogprobs:
    """`offset`: where in the text the first of them begins."""
    tokens = [_spelled(told.token, tokenizer) for told in logprobs]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return TextLogprobs(
        tokens,
        [max(told.logprob, LEAST) for told in logprobs],
        [_likely(told, tokenizer) for told in logprobs],
        offsets,
    )


def _likely(told: TokenLogprob, tokenizer: Tokenizer) -> dict[str, float]:
    """The most likely tokens, and the one that was taken."""
    pairs = [*told.top, (told.token, told.logprob)]
    return {_spelled(token, tokenizer): max(logprob, LEAST) for token, logprob in pairs}


def _spelled(token: int, tokenizer: Tokenizer) -> str:
    return tokenizer.token_bytes(token).decode(errors="replace")
