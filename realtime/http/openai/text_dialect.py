"""The text dialect, of `/v1/completions`: what a choice and each of its events look like there."""

from __future__ import annotations

from midstream.protocol import Beside, Rewound, Snapshot
from realtime.http.openai.choice_accumulator import Choice
from realtime.http.openai.logprobs import EncodedLogprob, Places, text_logprob, text_logprobs
from realtime.http.openai.requests import TextBody
from realtime.http.openai.response_types import AnyChoice, Rewinding, TextChoice, TextLogprobs
from realtime.pieces import Pieces, batches

BODY = TextBody
PREFIX = "cmpl-"
WHOLE = "text_completion"
CHUNK = "text_completion"
TOKENS_A_PIECE = 4096  # whose places in a text take some 3 ms to find
encoded_logprob = text_logprob


def first_chunk(index: int) -> AnyChoice | None:
    """Nothing is said before the first text."""
    return None


def text_chunk(choice: Choice, text: str, logprobs: list[EncodedLogprob]) -> AnyChoice:
    """`text` is to be written on, and `choice` knows it already."""
    offsets = choice.places.of(_spellings(logprobs), len(choice.text) - len(text), len(text))
    told = text_logprobs(logprobs, offsets) if logprobs else None
    return TextChoice(index=choice.index, text=text, logprobs=told)


def beside_chunk(choice: Choice, event: Beside) -> AnyChoice | None:
    """A prompt that is told as it is has no spans."""
    return None


def snapshot_chunks(choice: Choice, event: Snapshot) -> list[AnyChoice]:
    return []


def rewind_chunk(choice: Choice, event: Rewound) -> AnyChoice:
    return TextChoice(index=choice.index, text="", rewound=Rewinding(event.index, event.text_length))


def final_chunk(choice: Choice, reason: str) -> AnyChoice:
    return TextChoice(index=choice.index, text="", finish_reason=reason)


def whole_choice(choice: Choice, reason: str) -> Pieces[AnyChoice]:
    """Of many tokens some at a time."""
    places, logprobs = Places(), TextLogprobs([], [], [], [])
    for some in batches(choice.logprobs, TOKENS_A_PIECE):
        logprobs.add(text_logprobs(some, places.of(_spellings(some), 0, 0)))
        yield
    return TextChoice(
        index=choice.index,
        text=choice.text,
        logprobs=logprobs if choice.shows_logprobs else None,
        finish_reason=reason,
    )


def _spellings(logprobs: list[EncodedLogprob]) -> list[bytes]:
    return [one.spelling for one in logprobs]
