"""The cause of a connection's end, one of few, from the code that it was closed with; and what it was refused
for."""

from __future__ import annotations

from midstream.protocol import CloseCode
from realtime.hub.observers import DisconnectCause
from realtime.transport.asgi_websocket_extension import TOOK_NOTHING, UNANSWERED

_LOST = 1006  # RFC 6455, 7.1.5: without a close frame
_CAUSES: dict[int, DisconnectCause] = {
    1000: "closed",
    1001: "closed",
    1005: "closed",  # with a close frame that says nothing
    _LOST: "lost",
    1002: "refused",
    CloseCode.INVALID_TEXT: "refused",
    CloseCode.POLICY: "refused",
    CloseCode.TOO_LARGE: "refused",
    CloseCode.OVERLOADED: "refused",
    CloseCode.INTERNAL: "failed",
    CloseCode.NOT_AUTHENTICATED: "revoked",
    CloseCode.TAKEN_OVER: "replaced",
}


# With which error an HTTP request that did the same would be refused.
_CODES = {
    CloseCode.POLICY: "rate_limited",
    CloseCode.TOO_LARGE: "too_large",
    CloseCode.OVERLOADED: "rate_limited",
}


def refusal_code(code: int | None) -> str:
    """Of a connection that was closed for what its peer did."""
    return _CODES.get(code or _LOST, "invalid_frame")


def cause_of(code: int | None, reason: str | None, *, by_peer: bool = False) -> DisconnectCause:
    """`by_peer`: it is the peer's own code, and says nothing of what we would have closed with it."""
    if reason == TOOK_NOTHING and code == _LOST:
        return "slow"
    if reason == UNANSWERED:
        return "lost"
    return "closed" if by_peer else _CAUSES.get(code or _LOST, "closed")
