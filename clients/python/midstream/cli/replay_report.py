"""The report of a replay: a few lines for a person, and what they may conclude. Pure."""

from __future__ import annotations

from midstream.cli.sanitize import sanitize
from midstream.record_format import Record
from midstream.replay import Difference, OutputToken, Replay

MAX_TITLE_LENGTH = 60


def title(record: Record) -> str:
    words = sanitize(" ".join(record.title.split()))
    shown = words if len(words) <= MAX_TITLE_LENGTH else words[: MAX_TITLE_LENGTH - 1] + "…"
    return f"stream {record.start.stream}: {shown}"


def report(replay: Replay) -> list[str]:
    """Whether it is equal; if not, where and what; and what the fingerprints say to that."""
    counted = "1 token" if replay.tokens == 1 else f"{replay.tokens} tokens"
    if replay.difference is None:
        return [f"equal: {counted}", *_fingerprints(replay)]
    return [
        f"differs at token {replay.difference.index}, {counted} having been equal",
        *_difference(replay.difference),
        *_prompts(replay),
        *_fingerprints(replay),
    ]


def _difference(difference: Difference) -> list[str]:
    recorded, replayed = _token(difference.recorded), _token(difference.replayed)
    here = difference.recorded_logprob_here
    also = "" if here is None else f"; the recorded one has {here:.4f} here"
    return [f"recorded: {recorded}", f"here:     {replayed}{also}"]


def _token(token: OutputToken | None) -> str:
    if token is None:
        return "no more"
    text = "" if token.text is None else f" {sanitize(token.text)!r}"
    logprob = "not recorded" if token.logprob is None else f"{token.logprob:.4f}"
    return f"{token.token}{text}, log probability {logprob}"


def _prompts(replay: Replay) -> list[str]:
    recorded, replayed = replay.recorded_prompt_tokens, replay.replayed_prompt_tokens
    return [] if recorded == replayed else [f"the prompt had {recorded} tokens, and has {replayed} here"]


def _fingerprints(replay: Replay) -> list[str]:
    recorded = sanitize(" and ".join(replay.recorded_fingerprints))
    here = sanitize(" and ".join(replay.replayed_fingerprints))
    if replay.same_fingerprint:
        wrong = (
            "" if replay.equal else ": equal ones promise equal tokens, so this is a mistake of the server's"
        )
        return [f"the fingerprints are equal, {here}{wrong}"]
    return [f"the fingerprints differ: recorded {recorded or 'none'}, here {here or 'none'}"]
