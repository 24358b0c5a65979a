"""Exceptions: one class for each error code of the protocol, and the client's own.

Knows the codes and the close codes, and which of them are worth a retry. Knows no socket.
"""

from __future__ import annotations

import msgspec

from midstream.protocol import ERRORS, MAX_MILLISECONDS, RETRYABLE_CLOSE_CODES, Error, Final

ABNORMAL_CLOSURE = 1006  # RFC 6455, 7.4.1: no close frame was seen, so a new connection may well do better
# What decoders throw at bytes that are not what they were to be.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class MidstreamError(Exception):
    """The base of every exception that this package raises of its own."""


class RequestError(MidstreamError):
    """The server refused a frame. The subclasses, one for each code, say why; a new code is this one.

    `retry_after_ms` is a day at most: a server may say any number, and no clock takes one of hundreds of
    digits.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status: int,
        retryable: bool,
        retry_after_ms: int | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.retryable = retryable
        bounded = None if retry_after_ms is None else max(0, min(retry_after_ms, MAX_MILLISECONDS))
        self.retry_after_ms = bounded
        self.request_id = request_id


class InvalidFrame(RequestError):
    """400: a frame is malformed, or a field of it has the wrong type."""


class InvalidParams(RequestError):
    """400: a sampling parameter is unknown to the model, of the wrong type or out of its range."""


class ContextTooLong(RequestError):
    """400: the prompt, or what was injected, does not fit into the model's context."""


class Unauthenticated(RequestError):
    """401: the server wants an API key, and got none that it knows."""


class Forbidden(RequestError):
    """403: the key, or the origin, may not do this."""


class UnknownRequest(RequestError):
    """404: no stream of this name is known."""


class UnknownModel(RequestError):
    """404: the server does not serve this model."""


class RequestConflict(RequestError):
    """409: the request_id is taken by a stream with other content."""


class RequestFinished(RequestError):
    """409: the stream had already ended when the frame came."""


class RequestTaken(RequestError):
    """409: another connection has attached to the stream; attach to it to have it back."""


class RequestExpired(RequestError):
    """410: the stream ended so long ago that it is forgotten."""


class TooLarge(RequestError):
    """413: the frame is larger than the server takes."""


class Unsupported(RequestError):
    """422: valid, but not on this server or this model."""


class RateLimited(RequestError):
    """429: too many requests in too short a time; `retry_after_ms` says how long to wait."""


class TooManyStreams(RequestError):
    """429: the limit of streams at once is reached."""


class EngineError(RequestError):
    """500: the engine failed."""


class Overloaded(RequestError):
    """503: the server has no room for another stream just now."""


class ModelLoading(RequestError):
    """503: the model is being loaded, and the start asked not to wait for that (`on_cold`)."""


class Draining(RequestError):
    """503: the server is going away, and starts nothing new."""


BY_CODE: dict[str, type[RequestError]] = {
    "invalid_frame": InvalidFrame,
    "invalid_params": InvalidParams,
    "context_too_long": ContextTooLong,
    "unauthenticated": Unauthenticated,
    "forbidden": Forbidden,
    "unknown_request": UnknownRequest,
    "unknown_model": UnknownModel,
    "request_conflict": RequestConflict,
    "request_finished": RequestFinished,
    "request_taken": RequestTaken,
    "request_expired": RequestExpired,
    "too_large": TooLarge,
    "unsupported": Unsupported,
    "rate_limited": RateLimited,
    "too_many_streams": TooManyStreams,
    "engine_error": EngineError,
    "overloaded": Overloaded,
    "model_loading": ModelLoading,
    "draining": Draining,
}


def from_event(event: Error) -> RequestError:
    """The exception that mirrors an `error` event."""
    return BY_CODE.get(event.code, RequestError)(
        event.message,
        code=event.code,
        status=event.status,
        retryable=event.retryable,
        retry_after_ms=event.retry_after_ms,
        request_id=event.request_id,
    )


def from_code(
    code: str, message: str, request_id: str | None = None, *, retry_after_ms: int | None = None
) -> RequestError:
    """The same exception where no event was needed: the client itself knows what the server would answer."""
    status, retryable = ERRORS[code]
    return BY_CODE[code](
        message,
        code=code,
        status=status,
        retryable=retryable,
        retry_after_ms=retry_after_ms,
        request_id=request_id,
    )


class StreamFailed(MidstreamError):
    """The stream ended with finish reason "error". What came before stays in `stream.text`."""

    def __init__(self, final: Final) -> None:
        super().__init__(final.stop_reason or "the stream ended in an error")
        self.final = final


class LimitReached(MidstreamError):
    """A run of an agent was cancelled, because the model made more calls than it may."""


class ParseError(MidstreamError):
    """The answer is no value of the type that was asked for. `text` is what there is of it, `finish_reason`
    says whether there was to be more."""

    def __init__(self, message: str, *, text: str, finish_reason: str) -> None:
        super().__init__(message)
        self.text = text
        self.finish_reason = finish_reason


class ConnectionLost(MidstreamError):
    """The connection could not be made, or broke, or was closed: by either side.

    `code` is the WebSocket close code, or None if there never was a connection; `retryable` says whether
    connecting again is worth while.
    """

    def __init__(self, message: str, *, code: int | None, retryable: bool) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable


class ProtocolError(MidstreamError):
    """The server said what the protocol does not allow: a fault of the server's, or of this package."""


def connection_closed(code: int, reason: str) -> ConnectionLost:
    """The exception for a WebSocket closed with this code."""
    message = f"the connection was closed with code {code}" + (f": {reason}" if reason else "")
    return ConnectionLost(
        message, code=code, retryable=code in RETRYABLE_CLOSE_CODES or code == ABNORMAL_CLOSURE
    )


def silence_timed_out(seconds: float) -> ConnectionLost:
    """The exception for a connection over which nothing came any more."""
    message = f"the server said nothing for {seconds:g} s, and was asked for a sign of life meanwhile"
    return ConnectionLost(message, code=ABNORMAL_CLOSURE, retryable=True)


def not_the_same(request_id: str) -> ConnectionLost:
    """The exception for a stream that was started again, and began otherwise than it stood."""
    message = f"nobody knew {request_id!r} any more, and started again it does not begin as it stood"
    return ConnectionLost(message, code=None, retryable=False)


def stream_lost(event: Error) -> ConnectionLost:
    """The exception for a stream that did not survive the loss of its connection."""
    why = "was the server started again, or did the stream wait too long for its client?"
    message = f"the stream could not be taken up again after its connection was lost: {event.message}"
    return ConnectionLost(f"{message} ({why})", code=None, retryable=False)
