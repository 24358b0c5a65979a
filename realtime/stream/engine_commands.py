"""The engine commands that a steering frame becomes, and the refusals where it cannot: pure functions of a
frame and numbers."""

from __future__ import annotations

from engine import api
from midstream import protocol
from midstream.protocol import Params
from realtime.refusal import Refusal
from realtime.stream.params import sampling
from realtime.text.grammar import OutputRules

SteeringFrame = protocol.Pause | protocol.Resume | protocol.Adjust | protocol.Inject | protocol.Rewind


def commands_for(
    number: int,
    frame: SteeringFrame,
    params: Params | None,
    rules: OutputRules | None,
    *,
    offers_tools: bool,
    hold_at_eos: bool,
) -> list[api.AnyCommand]:
    """Commands, in order. An adjust at a token that was read begins with a rewinding to it; `params` are
    an adjust's, complete."""
    at = index_of(frame)
    rewinding: list[api.AnyCommand] = [] if at is None else [api.Truncate(number, at)]
    match frame:
        case protocol.Pause(kv=kv):
            return [*rewinding, api.Pause(number, kv == "release")]
        case protocol.Resume():
            return [*rewinding, api.Resume(number)]
        case protocol.Adjust():
            assert params is not None
            return [*rewinding, api.Adjust(number, sampling(params, rules, hold_at_eos=hold_at_eos))]
        case protocol.Inject():
            return [append_for(number, frame, offers_tools=offers_tools)]
        case protocol.Rewind():
            return rewinding


def append_for(
    number: int, frame: protocol.Inject, *, offers_tools: bool, behind: int | None = None
) -> api.Append:
    """Its text has become tokens. Where tools are offered a grammar begins anew in each turn, whether it is
    the tools' or not: no grammar of an answer has results of calls in it."""
    assert frame.tokens is not None
    anew = frame.grammar == "anew" or (offers_tools and frame.messages is not None)
    return api.Append(number, frame.tokens, anew, behind)


def check_index(frame: SteeringFrame, sent: int) -> None:
    """Nobody can act at a token that has not been sent."""
    index = index_of(frame)
    if index is not None and index > sent:
        field = "to" if isinstance(frame, protocol.Rewind) else "at"
        raise Refusal(
            "invalid_params",
            f"`{field}` is {index}, but only {sent} output tokens have been sent: "
            f"it must be an index that has been seen, 0 to {sent}.",
        )


def too_long(used: int, more: int, context: int) -> Refusal:
    return Refusal(
        "context_too_long",
        f"{used} tokens stand and {more} more were to be injected, but the model's context holds {context}, "
        "and one must be left for output.",
    )


def not_put_in(command: api.Append, change: api.Refused, frame: protocol.Frame | None) -> Refusal:
    """It fitted the context when it came; tokens that were under way may have taken the room."""
    if change.reason == "context":
        return too_long(change.known, len(command.tokens), change.context)
    if isinstance(frame, protocol.Amend):
        return Refusal("invalid_params", f'These `arguments` do not fit the tool of call "{frame.call_id}".')
    at = frame.at if isinstance(frame, protocol.Inject) else None
    return Refusal(
        "invalid_params",
        "The grammar of this stream does not allow what was to be injected before token "
        f"{change.index if at is None else at}: "
        '`grammar` "anew" begins it anew behind that.',
    )


def index_of(frame: object) -> int | None:
    """The token that it was asked at."""
    match frame:
        case protocol.Rewind(to=to):
            return to
        case protocol.Adjust(at=at) | protocol.Inject(at=at):
            return at
    return None
